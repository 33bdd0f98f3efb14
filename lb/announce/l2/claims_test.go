package l2

import (
	"math"
	"testing"
	"time"
)

// The claims of a member that count are the newest of its newest process, whatever its clock says.
// A forged one counts for a bounded time.
func TestClaimsInOrder(t *testing.T) {
	const old, next = 9, 3
	type claim struct {
		process, sequence uint64
		after             time.Duration // of the one before
		taken             bool
	}
	for name, list := range map[string][]claim{
		"in order":           {{old, 1, 0, true}, {old, 2, 0, true}},
		"late":               {{old, 2, 0, true}, {old, 1, 0, false}, {old, 2, 0, false}, {old, 3, 0, true}},
		"the next process":   {{old, 700, 0, true}, {next, 1, 0, true}, {next, 2, 0, true}},
		"the old one, late":  {{old, 7, 0, true}, {next, 1, 0, true}, {old, 8, time.Second, false}, {next, 2, 0, true}},
		"a forged sequence":  {{old, 1, 0, true}, {old, math.MaxUint64, 0, true}, {old, 2, time.Second, false}, {old, 3, staleAfter, true}},
		"a forged process":   {{old, 1, 0, true}, {1, math.MaxUint64, 0, true}, {old, 2, lateFor, true}, {old, 3, 0, true}},
		"two forged in turn": {{old, 1, 0, true}, {1, 1, 0, true}, {2, 1, 0, true}, {old, 2, 0, true}},
	} {
		var last *peer
		now := time.Now()
		for i, c := range list {
			now = now.Add(c.after)
			p := &peer{claims: claims{Process: c.process, Sequence: c.sequence}, heard: now}
			taken := p.follows(last)
			if taken != c.taken {
				t.Errorf("%s: claim %d is taken: %v", name, i, taken)
			}
			if taken {
				last = p
			}
		}
	}
}
