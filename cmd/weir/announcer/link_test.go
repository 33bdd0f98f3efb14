package announcer

import (
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/cmd/weir/event"
	"github.com/weirlb/weir/lb/announce"
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

// An address of the LAN that no node answers for is a problem with the reason, once another node had the time to
// take it. Addresses without endpoints, of routers alone, and of a node that starts are none.
func TestProblemsOfAddressesWithoutAnOwner(t *testing.T) {
	now, k := time.Now(), &links{}
	address := func(last byte, reason, detail string, on api.AnnouncedL2) api.AnnouncedAddress {
		return api.AnnouncedAddress{Address: netip.AddrFrom4([4]byte{192, 0, 2, last}), Announced: reason == "", Reason: reason, Detail: detail, L2: &on}
	}
	s := &api.Announce{Addresses: []api.AnnouncedAddress{
		address(1, "not-eligible", "x", api.AnnouncedL2{State: "ineligible", Reason: "not-eligible: x"}),
		address(2, "not-eligible", "x", api.AnnouncedL2{State: "ineligible", Reason: "not-eligible: x", Owner: "b"}),
		address(3, "not-eligible", "x", api.AnnouncedL2{State: "ineligible", Reason: "not-eligible: x"}),
		address(4, "", "", api.AnnouncedL2{State: "owner"}),
		address(5, "", "", api.AnnouncedL2{State: "ineligible", Reason: onlyRouters}),
		address(6, "not-served", announce.NoEndpoint, api.AnnouncedL2{State: "ineligible", Reason: "not-served"}),
		address(7, "not-served", "Service a/b has endpoints on other nodes only", api.AnnouncedL2{State: "ineligible", Reason: "not-served: elsewhere"}),
		address(8, "settling", "", api.AnnouncedL2{State: "ineligible", Reason: "settling"}),
		{Address: netip.MustParseAddr("192.0.2.9"), Announced: true},
	}}
	if list := k.unansweredProblems(s, now); len(list) > 0 {
		t.Errorf("at once: %v", list)
	}
	list := k.unansweredProblems(s, now.Add(unansweredFor))
	if len(list) != 2 || list[0].Reason != "no node on the LAN answers for 192.0.2.1 and 1 more; this node does not since: not-eligible: x" ||
		list[1].Object != "Address 192.0.2.7" || !strings.HasSuffix(list[1].Reason, "not-served: elsewhere") {
		t.Errorf("%v", list)
	}
	s.Addresses[0].L2.Owner = "b"
	k.unansweredProblems(s, now.Add(unansweredFor))
	if s.Addresses[0].L2.Owner = ""; len(k.unansweredProblems(s, now.Add(2*unansweredFor))) != 2 {
		t.Error("an address that was taken meanwhile is a problem at once")
	}
}
