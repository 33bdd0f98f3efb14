package prober

import (
	"container/heap"
	"context"
	"errors"
	"math/rand/v2"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/weirlb/weir/discovery/probe"
)

// Bounds of a node. Whoever writes Services can ask for more: then the periods of those who ask for
// more than their part grow, see lengthen.
const (
	// PerSecond is the number of probes in a second.
	PerSecond = 2000
	// InFlight is the number of probes at the same time. A group has at most a third of what others leave
	// free, as ports of a switch share its buffer: a quarter alone, and some is free however many ask.
	InFlight = 512
	// burst is how many probes may begin at once.
	burst = PerSecond / 20
	// firstWithin is the time in which an endpoint is probed at first.
	firstWithin = 500 * time.Millisecond
	// jitter is the part of a period that probes are early by, at most, so that those of many nodes and
	// endpoints do not stay together.
	jitter = 0.1
	// dueEvery is how often due probes, and outcomes of connections by TCP, are looked for: what is done
	// together costs less. Probes begin, and end, later by that at most.
	dueEvery = 50 * time.Millisecond
)

// key identifies a target: owners with an equal one share the probe. Those of other groups do not: each
// group has its own part of the bounds, and notes of another on the target may be late.
type key struct {
	group    string
	at       netip.AddrPort
	via      Via
	identity string
}

func (t *Target) key(group string) key { return key{group, t.At, t.Via, t.Check.Identity()} }

// Value is what the probes of a target say.
type Value uint8

// Values. The first probe decides at once.
const (
	Unchecked Value = iota
	Passing
	Failing
)

// String is the value in the API's words.
func (v Value) String() string { return [...]string{"unchecked", "passing", "failing"}[v%3] }

// State is what is known of a target.
type State struct {
	Value  Value
	Since  time.Time // of Value
	Reason string    // of the last probe that failed
	// Latency is the time that the last successful probe took, Passed when it ended, Last when the last
	// probe ended.
	Latency      time.Duration
	Passed, Last time.Time
}

// target is a Target that is probed.
type target struct {
	Target
	key       key
	owners    map[string]struct{} // none: it is gone
	group     *group
	state     State
	successes int // in a row
	failures  int
	due       time.Time
	index     int // in the queue; -1: it is probed now, or waits for its group, or is gone
}

// group are targets that share a part of the bounds: those of a namespace.
type group struct {
	perSecond float64 // that its targets ask for
	stretched float64 // by how much its periods are longer
	inFlight  int
	waiting   []*target
}

// Scheduler probes targets.
type Scheduler struct {
	probe    func(context.Context, *Target) error
	onChange func(Target, State, []string)
	together bool     // connections of TCP: by connects
	connects connects // of Run

	mu       sync.Mutex
	owned    map[string][]key
	targets  map[key]*target
	groups   map[string]*group
	queue    queue
	limit    *rate.Limiter
	inFlight int
	wake     chan struct{}
	changed  bool  // targets, since the last lengthen
	fault    error // of the node, of the last probe
}

// Scheduler makes a Scheduler of probes by d, in which connections of TCP by the node's own path are begun
// and looked at together. onChange is as of NewScheduler.
func (d Dialer) Scheduler(onChange func(Target, State, []string)) *Scheduler {
	s := NewScheduler(onChange, d.Probe)
	s.together = true
	return s
}

// NewScheduler makes a Scheduler of probes by a function. onChange is called with each change of a Value,
// and the owners of the target, by any goroutine and without a lock.
func NewScheduler(onChange func(Target, State, []string), probe func(context.Context, *Target) error) *Scheduler {
	return &Scheduler{
		probe: probe, onChange: onChange, owned: map[string][]key{}, targets: map[key]*target{}, groups: map[string]*group{},
		limit: rate.NewLimiter(PerSecond, burst), wake: make(chan struct{}, 1),
	}
}

// Set replaces the targets of an owner, which belongs to a group.
func (s *Scheduler) Set(owner, ofGroup string, targets []Target) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(targets) == 0 && len(s.owned[owner]) == 0 {
		return
	}
	before := s.owned[owner]
	keys := make([]key, 0, len(targets))
	kept := make(map[key]struct{}, len(targets))
	within := max(firstWithin, time.Duration(len(targets))*2*time.Second/PerSecond)
	for i := range targets {
		k := targets[i].key(ofGroup)
		if _, twice := kept[k]; twice {
			continue
		}
		keys, kept[k] = append(keys, k), struct{}{}
		t := s.targets[k]
		if t == nil {
			t = &target{Target: targets[i], key: k, owners: map[string]struct{}{}, group: s.groupOf(ofGroup)}
			t.state.Since = time.Now()
			t.due = t.state.Since.Add(rand.N(within))
			s.targets[k] = t
			heap.Push(&s.queue, t)
		}
		t.owners[owner] = struct{}{}
	}
	for _, k := range before {
		if _, stays := kept[k]; !stays {
			s.release(owner, k)
		}
	}
	if s.owned[owner] = keys; len(keys) == 0 {
		delete(s.owned, owner)
	}
	s.changed = true
	s.awake()
}

func (s *Scheduler) groupOf(name string) *group {
	g := s.groups[name]
	if g == nil {
		g = &group{stretched: 1}
		s.groups[name] = g
	}
	return g
}

// release takes an owner from a target, which ends with its last owner.
func (s *Scheduler) release(owner string, k key) {
	t := s.targets[k]
	if delete(t.owners, owner); len(t.owners) > 0 {
		return
	}
	delete(s.targets, k)
	if t.index >= 0 {
		heap.Remove(&s.queue, t.index)
	}
}

// State is the knowledge of a target of a group, the zero State of one that nobody has set.
func (s *Scheduler) State(group string, t Target) State {
	s.mu.Lock()
	defer s.mu.Unlock()
	if known := s.targets[t.key(group)]; known != nil {
		return known.state
	}
	return State{}
}

// Load is how many targets there are, and by how much the longest periods are longer than asked for.
// fault is why the node cannot send probes, nil if it can.
func (s *Scheduler) Load() (targets int, stretched float64, fault error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	stretched = 1
	for _, g := range s.groups {
		stretched = max(stretched, g.stretched)
	}
	return len(s.targets), stretched, s.fault
}

func (s *Scheduler) awake() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Run probes until ctx ends. It returns when no probe is left.
func (s *Scheduler) Run(ctx context.Context) {
	var probes sync.WaitGroup
	defer probes.Wait()
	defer s.connects.close()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		timer.Reset(s.round(ctx, &probes, time.Now()))
		select {
		case <-ctx.Done():
			return
		case <-s.wake:
		case <-timer.C:
		}
	}
}

// round ends the connections whose outcome is known, and begins the probes that are due at now. It returns
// how long it may rest.
func (s *Scheduler) round(ctx context.Context, probes *sync.WaitGroup, now time.Time) time.Duration {
	s.connects.collect(now, func(t *target, err error, began time.Time, took time.Duration) {
		s.end(t, inWords(err, t.Check.Timeout), began, took)
	})
	due, rest := s.due(now)
	for _, t := range due {
		if !s.together || t.Check.Kind != probe.TCP || t.Via != (Via{}) {
			probes.Go(func() {
				began := time.Now()
				err := s.probe(ctx, &t.Target)
				s.end(t, err, began, time.Since(began))
			})
		} else if err := s.connects.begin(t, now); err != nil {
			s.end(t, inWords(err, t.Check.Timeout), now, 0)
		}
	}
	if !s.connects.empty() {
		rest = min(rest, dueEvery)
	}
	return rest
}

// due takes the targets from the queue whose probes are to begin at now, and returns how long until the
// next.
func (s *Scheduler) due(now time.Time) (due []*target, rest time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.changed {
		s.changed = false
		s.lengthen()
	}
	for len(s.queue) > 0 && s.inFlight < InFlight {
		t := s.queue[0]
		if wait := t.due.Sub(now); wait > 0 {
			return due, max(dueEvery, wait)
		}
		if s.room(t.group) == 0 {
			heap.Pop(&s.queue)
			t.group.waiting = append(t.group.waiting, t)
			continue
		}
		if !s.limit.AllowN(now, 1) {
			return due, dueEvery
		}
		heap.Pop(&s.queue)
		s.inFlight++
		t.group.inFlight++
		due = append(due, t)
	}
	return due, time.Hour // until it is woken
}

// room is how many more probes of a group may begin. One always may, so that none waits for others.
// Preconditions: s.mu is held.
func (s *Scheduler) room(g *group) int {
	return max(0, max(1, (InFlight-s.inFlight+2)/3)-g.inFlight)
}

// end is of a probe with its outcome.
func (s *Scheduler) end(t *target, err error, began time.Time, took time.Duration) {
	changed, state, owners := s.note(t, err, began, took)
	if changed {
		s.onChange(t.Target, state, owners)
	}
}

// note notes the outcome of a probe, and when the next is due.
func (s *Scheduler) note(t *target, err error, began time.Time, took time.Duration) (changed bool, state State, owners []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	full := s.inFlight == InFlight
	s.inFlight--
	t.group.inFlight--
	for room := s.room(t.group); len(t.group.waiting) > 0 && room > 0; {
		next := t.group.waiting[0]
		t.group.waiting = t.group.waiting[1:]
		if len(next.owners) > 0 { // not gone meanwhile
			heap.Push(&s.queue, next)
			full = true
			room--
		}
	}
	if full {
		s.awake()
	}
	if len(t.owners) == 0 {
		return false, State{}, nil // gone meanwhile
	}
	period := float64(t.Check.Period) * t.group.stretched
	t.due = began.Add(time.Duration(period * (1 - jitter*rand.Float64())))
	if len(s.queue) == 0 || t.due.Before(s.queue[0].due) {
		s.awake()
	}
	heap.Push(&s.queue, t)
	if s.fault = nil; errors.Is(err, ErrNode) {
		s.fault = err
		return false, State{}, nil
	}
	if !t.note(err, took, time.Now()) {
		return false, State{}, nil
	}
	for o := range t.owners {
		owners = append(owners, o)
	}
	return true, t.state, owners
}

// note counts a result, and reports whether the value is another.
func (t *target) note(err error, took time.Duration, now time.Time) bool {
	value := t.state.Value
	t.state.Last = now
	if err == nil {
		t.failures, t.successes, t.state.Latency = 0, min(t.successes+1, t.Check.SuccessThreshold), took
		t.state.Passed = now
		if value == Unchecked || t.successes >= t.Check.SuccessThreshold {
			value = Passing
		}
	} else {
		t.successes, t.failures, t.state.Reason = 0, min(t.failures+1, t.Check.FailureThreshold), err.Error()
		if value == Unchecked || t.failures >= t.Check.FailureThreshold {
			value = Failing
		}
	}
	if value == t.state.Value {
		return false
	}
	t.state.Value, t.state.Since = value, now
	return true
}

// queue has the targets by the time when they are due.
type queue []*target

func (q queue) Len() int           { return len(q) }
func (q queue) Less(i, j int) bool { return q[i].due.Before(q[j].due) }
func (q queue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].index, q[j].index = i, j
}
func (q *queue) Push(x any) {
	t := x.(*target)
	t.index = len(*q)
	*q = append(*q, t)
}
func (q *queue) Pop() any {
	old := *q
	t := old[len(old)-1]
	old[len(old)-1], t.index = nil, -1
	*q = old[:len(old)-1]
	return t
}
