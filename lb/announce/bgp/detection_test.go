package bgp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

// BFD is started after a session is established, stopped when it ends, and never runs from a session
// into the next. A change that fails is made again, and keeps no other neighbor waiting.
func TestBFDRunsForASessionAlone(t *testing.T) {
	up := func(n int) func(*detection) { return func(d *detection) { d.session(n, true) } }
	down := func(n int) func(*detection) { return func(d *detection) { d.session(n, false) } }
	both := func(a, b func(*detection)) func(*detection) { return func(d *detection) { a(d); b(d) } }
	for name, c := range map[string]struct {
		events []func(*detection)
		fails  int // how many changes of neighbor 0 fail at first, in a row
		want   []string
	}{
		"no session":           {nil, 0, nil},
		"a session":            {[]func(*detection){up(0), down(0)}, 0, []string{"0 on", "0 off"}},
		"a short session":      {[]func(*detection){both(up(0), down(0))}, 0, nil},
		"a session and a next": {[]func(*detection){up(0), both(down(0), up(0))}, 0, []string{"0 on", "0 off", "0 on", "0 off"}},
		"an end":               {[]func(*detection){up(0), up(1)}, 0, []string{"0 on", "1 on", "0 off", "1 off"}},
		"failures":             {[]func(*detection){up(0), up(1)}, 15, []string{"0 failed", "1 on", "0 failed", "0 on", "0 off", "1 off"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var got []string
				fails := c.fails
				d := newDetection(2, func(n int, on bool) error {
					if n == 0 && fails > 0 {
						fails--
						return errors.New("refused")
					}
					got = append(got, fmt.Sprint(n, map[bool]string{true: " on", false: " off"}[on]))
					return nil
				}, func(n int, _ error) { got = append(got, fmt.Sprint(n, " failed")) })
				for _, event := range c.events[:min(1, len(c.events))] {
					event(d)
				}
				ctx, cancel := context.WithCancel(t.Context())
				ended := make(chan struct{})
				go func() {
					defer close(ended)
					d.run(ctx)
				}()
				for _, event := range c.events[min(1, len(c.events)):] {
					time.Sleep(10 * time.Second)
					event(d)
				}
				time.Sleep(time.Minute)
				cancel()
				<-ended
				if got = slices.Compact(got); !slices.Equal(got, c.want) {
					t.Errorf("%q, want %q", got, c.want)
				}
			})
		})
	}
}

// Close ends all that New has started.
func TestCloseEndsBFD(t *testing.T) {
	before := goleak.IgnoreCurrent()
	s, err := New(Config{
		ASN: 64512, RouterID: netip.MustParseAddr("192.0.2.9"), Log: slog.New(slog.DiscardHandler),
		Neighbors: []Neighbor{{Address: netip.MustParseAddr("127.0.0.1"), Port: 1, ASN: 64513, Hold: 9 * time.Second, Keepalive: 3 * time.Second, BFD: &BFD{Multiplier: 3}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	s.detection.session(0, true)
	for len(s.bfdStates()) == 0 {
		time.Sleep(time.Millisecond)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := goleak.Find(before); err != nil {
		t.Error(err)
	}
}
