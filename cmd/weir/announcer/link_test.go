package announcer

import (
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/cmd/weir/event"
	"github.com/weirlb/weir/lb/announce/l2"
)

// Hosts that say they are nodes make one problem, however many they are: a host can forge many.
func TestProblemsOfLinks(t *testing.T) {
	now := time.Now()
	s := &api.Announce{
		L2: []api.AnnounceLink{{Interface: "eth0", Carrier: true, Unjoined: map[string]string{"192.0.2.9": "it has another key", "192.0.2.8": "refused", "192.0.2.7": "timeout"}}},
		Addresses: []api.AnnouncedAddress{
			{Address: netip.MustParseAddr("192.0.2.100"), L2: &api.AnnouncedL2{State: "ineligible", Interface: "eth0", Rival: "02:00:00:00:00:66", RivalHeard: &now}},
			{Address: netip.MustParseAddr("192.0.2.101"), L2: &api.AnnouncedL2{State: "owner", Interface: "eth0"}},
		},
	}
	var text []string
	for _, p := range linkProblems(s, now) {
		text = append(text, p.Object+": "+p.Reason)
	}
	all := strings.Join(text, "\n")
	if len(text) != 2 || !strings.Contains(all, "192.0.2.7 and 2 more") || !strings.Contains(all, "timeout") || !strings.Contains(all, "Address 192.0.2.100: 02:00:00:00:00:66 claims it") {
		t.Errorf("%s", all)
	}
}

// Addresses that a node takes do not replace those that it took before in weir events.
func TestEventsOfOtherAddressesAreTwo(t *testing.T) {
	ring := event.NewRing(slog.New(slog.DiscardHandler))
	k := &links{events: ring}
	for _, a := range []string{"192.0.2.100", "192.0.2.101", "192.0.2.101"} {
		k.tell(l2.Event{Kind: l2.Took, Interface: "eth0", Addresses: []netip.Addr{netip.MustParseAddr(a)}})
	}
	if list, _ := ring.List(&event.Filter{}); len(list) != 2 || list[0].Text != "took 192.0.2.100" || list[1].Count != 2 {
		t.Errorf("%+v", list)
	}
}
