package l2

import (
	"maps"
	"math/rand/v2"
	"slices"
	"time"
)

// challenges are the numbers by which claims are proved to be new. A process counts them from a random
// number, and says each in one message. Whoever sends recorded claims again can ask with the numbers in
// them alone: those of a process that were heard before are not answered again, and hide none that is new.
type challenges struct {
	last  uint64            // of this process
	heard map[uint64]uint64 // the last of other processes
}

const (
	// maxProcesses are the processes of which the last challenge is kept. With claims of more processes
	// that were recorded, challenges of those that are gone are answered again.
	maxProcesses = 4096
	// maxAnswers are the challenges that a node is sent answers to at a time.
	maxAnswers = 64
)

func newChallenges() challenges {
	return challenges{last: rand.Uint64() >> 1, heard: map[uint64]uint64{}}
}

// next is a challenge that was never said.
func (c *challenges) next() uint64 {
	c.last++
	return c.last
}

// take reports whether a challenge of another process is to be answered. member reports whether a process is
// that of a member: it is not forgotten for others.
func (c *challenges) take(process, challenge uint64, member func(process uint64) bool) bool {
	last, known := c.heard[process]
	if challenge <= last {
		return false
	}
	if !known && len(c.heard) >= maxProcesses {
		maps.DeleteFunc(c.heard, func(p, _ uint64) bool { return !member(p) })
	}
	c.heard[process] = challenge
	return true
}

// answered reports whether there is an answer to a challenge that was said since first, to any node: a
// node that is sent those of another on purpose answers them, too.
func (c *challenges) answered(answers []uint64, first uint64) bool {
	return slices.ContainsFunc(answers, func(x uint64) bool { return x >= first && x <= c.last })
}

// doubt has a node prove that its claims are new. Preconditions: link.mu is held.
func (o *other) doubt(c *challenges, now time.Time) {
	o.challenge, o.challenged, o.asked = c.next(), now, now
}

// answer has a node sent the answer to a challenge. Preconditions: link.mu is held.
func (o *other) answer(challenge uint64) {
	if len(o.answers) >= maxAnswers {
		o.answers = o.answers[1:]
	}
	o.answers = append(slices.Clip(o.answers), challenge) // the former may be on the way
}

// saying are the claims as they are sent to a node. Preconditions: link.mu is held.
func (o *other) saying(said claims, c *challenges, now time.Time) claims {
	o.dirty, said.Answers = false, o.answers
	if o.challenge != 0 {
		said.Challenge, o.asked = c.next(), now
	}
	return said
}
