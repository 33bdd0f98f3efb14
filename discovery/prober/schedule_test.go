package prober

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirlb/weir/discovery/probe"
)

// inFlightOfGroup are the probes in flight of a group that is alone.
const inFlightOfGroup = InFlight / 4

func check(t *testing.T, text string) *probe.Check {
	t.Helper()
	c, errs, _ := probe.Parse("check", text)
	if c == nil {
		t.Fatal(errs)
	}
	return c
}

func address(i int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), 80)
}

// run runs a Scheduler in a bubble of false time, in which f acts.
func run(t *testing.T, onChange func(Target, State, []string), do func(context.Context, *Target) error, f func(*Scheduler)) {
	synctest.Test(t, func(*testing.T) {
		s := NewScheduler(onChange, do)
		ctx, cancel := context.WithCancel(context.Background())
		var ended sync.WaitGroup
		ended.Go(func() { s.Run(ctx) })
		f(s)
		cancel()
		ended.Wait()
	})
}

func nothing(Target, State, []string) {}

// The first probe decides at once, later ones by the thresholds; what the node could not send counts
// for nothing.
func TestThresholds(t *testing.T) {
	fails, ofNode := errors.New("refused"), fmt.Errorf("%w: too many files", ErrNode)
	answers := []error{nil, fails, fails, ofNode, nil, fails, fails, fails, nil, fails, nil, ofNode, nil, nil}
	want := []string{"1 passing", "8 failing", "13 passing"}
	var mu sync.Mutex
	n := 0
	var got []string
	run(t, func(_ Target, st State, owners []string) {
		mu.Lock()
		defer mu.Unlock()
		got = append(got, fmt.Sprintf("%d %s", n, st.Value))
		if !slices.Equal(owners, []string{"ns/a"}) {
			t.Errorf("owners %q", owners)
		}
	}, func(context.Context, *Target) error {
		mu.Lock()
		defer mu.Unlock()
		n++
		return answers[min(n, len(answers))-1]
	}, func(s *Scheduler) {
		s.Set("ns/a", "ns", []Target{{At: address(1), Check: check(t, "{tcpSocket: {}, periodSeconds: 1}")}})
		time.Sleep(14 * time.Second)
	})
	if !slices.Equal(got, want) {
		t.Errorf("changes %q, want %q", got, want)
	}
}

// Services of a namespace that check an endpoint and port alike share the probe, and its state ends with the last.
func TestOwnersShareAProbe(t *testing.T) {
	var mu sync.Mutex
	n := 0
	target := Target{At: address(1), Check: check(t, "tcpSocket: {}")}
	run(t, nothing, func(context.Context, *Target) error {
		mu.Lock()
		defer mu.Unlock()
		n++
		return nil
	}, func(s *Scheduler) {
		s.Set("ns/a", "ns", []Target{target, target})
		s.Set("ns/b", "ns", []Target{{At: address(1), Check: check(t, "tcpSocket: {port: 80}")}})
		time.Sleep(20*time.Second - time.Millisecond)
		mu.Lock()
		if n < 10 || n > 12 { // a period of 2 s, less up to a tenth
			t.Errorf("%d probes in 20 s", n)
		}
		mu.Unlock()
		s.Set("ns/a", "ns", nil)
		if s.State("ns", target).Value != Passing {
			t.Errorf("%+v", s.State("ns", target))
		}
		s.Set("ns/b", "ns", nil)
		mu.Lock()
		before := n
		mu.Unlock()
		time.Sleep(20 * time.Second)
		mu.Lock()
		defer mu.Unlock()
		if n != before || s.State("ns", target) != (State{}) {
			t.Errorf("%d probes without an owner, %+v", n-before, s.State("ns", target))
		}
	})
}

// An author who asks for more than a node sends, at endpoints that do not answer, delays the probes of
// no other.
func TestBounds(t *testing.T) {
	var mu sync.Mutex
	flying, most, begun := 0, 0, map[bool]int{}
	victim := address(1 << 20)
	run(t, nothing, func(_ context.Context, to *Target) error {
		mu.Lock()
		begun[to.At == victim]++
		flying++
		most = max(most, flying)
		mu.Unlock()
		if to.At != victim {
			time.Sleep(to.Check.Timeout)
		}
		mu.Lock()
		defer mu.Unlock()
		flying--
		return nil
	}, func(s *Scheduler) {
		var many []Target
		slow := check(t, "{tcpSocket: {}, periodSeconds: 1, timeoutSeconds: 10}")
		for i := range 5000 {
			many = append(many, Target{At: address(i), Check: slow})
		}
		s.Set("attacker/a", "attacker", many)
		s.Set("attacker/b", "attacker", []Target{{At: victim, Check: check(t, "{tcpSocket: {}, periodSeconds: 1}")}}) // the other's, first
		time.Sleep(time.Minute)
		s.Set("ns/b", "ns", []Target{{At: victim, Check: check(t, "{tcpSocket: {}, periodSeconds: 1}")}})
		time.Sleep(30 * time.Second)
		mu.Lock()
		defer mu.Unlock()
		if most != inFlightOfGroup+1 {
			t.Errorf("%d probes in flight, want %d", most, inFlightOfGroup+1)
		}
		if begun[true] < 29 {
			t.Errorf("%d probes of another author in 30 s", begun[true])
		}
		if _, stretched, _ := s.Load(); stretched < 5000/(PerSecond*(1-reserve))-0.01 {
			t.Errorf("stretched by %v", stretched)
		}
	})
}

// Authors of several namespaces together do not take all the room for probes, and have it again when
// others end.
func TestSlowGroupsLeaveRoom(t *testing.T) {
	var mu sync.Mutex
	flying, most, begun := 0, 0, 0
	victim := address(1 << 20)
	run(t, nothing, func(_ context.Context, to *Target) error {
		mu.Lock()
		if to.At == victim {
			begun++
		}
		flying++
		most = max(most, flying)
		mu.Unlock()
		if to.At != victim {
			time.Sleep(to.Check.Timeout)
		}
		mu.Lock()
		defer mu.Unlock()
		flying--
		return nil
	}, func(s *Scheduler) {
		slow := check(t, "{tcpSocket: {}, periodSeconds: 1, timeoutSeconds: 60}")
		for g := range 16 {
			var many []Target
			for i := range 1000 {
				many = append(many, Target{At: address(g<<16 + i), Check: slow})
			}
			s.Set(fmt.Sprintf("attacker%d/a", g), fmt.Sprintf("attacker%d", g), many)
		}
		time.Sleep(10 * time.Second)
		s.Set("ns/b", "ns", []Target{{At: victim, Check: check(t, "{tcpSocket: {}, periodSeconds: 1}")}})
		time.Sleep(30 * time.Second)
		mu.Lock()
		if begun < 29 {
			t.Errorf("%d probes of another author in 30 s", begun)
		}
		mu.Unlock()
		for g := 1; g < 16; g++ {
			s.Set(fmt.Sprintf("attacker%d/a", g), fmt.Sprintf("attacker%d", g), nil)
		}
		time.Sleep(5 * time.Minute)
		mu.Lock()
		defer mu.Unlock()
		if flying < inFlightOfGroup-1 {
			t.Errorf("%d probes in flight of a group that is alone", flying)
		}
	})
}

// Periods are longer where all ask for too much, and the number of probes stays in bounds.
func TestPeriodsGrow(t *testing.T) {
	var mu sync.Mutex
	n := 0
	run(t, nothing, func(context.Context, *Target) error {
		mu.Lock()
		defer mu.Unlock()
		n++
		return nil
	}, func(s *Scheduler) {
		c := check(t, "{tcpSocket: {}, periodSeconds: 1}")
		for g := range 4 {
			var list []Target
			for i := range 5000 {
				list = append(list, Target{At: address(g<<16 + i), Check: c})
			}
			s.Set(fmt.Sprint(g), fmt.Sprint(g), list)
		}
		time.Sleep(20 * time.Second)
		mu.Lock()
		before := n
		mu.Unlock()
		time.Sleep(20 * time.Second)
		mu.Lock()
		defer mu.Unlock()
		if got := n - before; got > 20*PerSecond+burst || got < 15*PerSecond {
			t.Errorf("%d probes in 20 s, at most %d per second", got, PerSecond)
		}
	})
}
