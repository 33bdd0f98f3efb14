package announcer

import (
	"net/netip"
	"testing"
	"time"

	"github.com/weirlb/weir/lb/announce"
)

// heard is a speaker that is told whether the routes are complete.
type heard struct {
	spoken
	settled bool
}

func (s *heard) Settled(settled bool) { s.settled = settled }

// A speaker hears of complete routes when neither the view of Services nor the time of an address
// can bring another, and of a node that may announce nothing.
func TestASpeakerHearsWhetherRoutesAreComplete(t *testing.T) {
	for name, c := range map[string]struct {
		node    announce.Node
		settle  time.Duration
		waiting bool // for objects of the API server
		want    bool
	}{
		"served":                    {want: true},
		"no view of Services":       {node: announce.Node{NotSynced: true}},
		"an address settles":        {settle: time.Hour},
		"objects are not known":     {waiting: true},
		"drained, and no view":      {node: announce.Node{NotSynced: true, Draining: true}, want: true},
		"packet path does not work": {node: announce.Node{Unhealthy: "worker 1 is stuck"}, want: true},
		"cordoned":                  {node: announce.Node{NotEligible: "cordoned"}, want: true},
	} {
		t.Run(name, func(t *testing.T) {
			s := &heard{}
			a := startAnnouncer(s, nil, announce.Settings{Allow: []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24")}, Settle: c.settle})
			if c.waiting {
				a.source = &objectSource{}
			}
			web := webAt(2, "203.0.113.1")
			a.services[web.Name] = frontendsOf(&web)
			a.services[web.Name][0].Programmed = true
			a.node = announce.Node{Stopping: false, NotEligible: "before"}
			a.ask(c.node)
			if s.settled != c.want {
				t.Errorf("settled %v: %+v", s.settled, a.decisions)
			}
			other := &heard{}
			if err := a.replace(other); err != nil || other.settled != c.want {
				t.Errorf("another speaker: settled %v, %v", other.settled, err)
			}
		})
	}
}
