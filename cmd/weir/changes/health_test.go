package changes

import (
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/weirlb/weir/cmd/weir/endpointhealth"
	"github.com/weirlb/weir/cmd/weir/event"
	"github.com/weirlb/weir/discovery"
	"github.com/weirlb/weir/topology"
)

// Each endpoint has its own event with the reason, also of many at once and at the same address, and a
// success does not replace a failure.
func TestHealthOfEachEndpointIsAnEvent(t *testing.T) {
	ring := event.NewRing(slog.New(slog.DiscardHandler))
	teller := Teller{Events: ring}
	var want []string
	web := discovery.ServiceName{Namespace: "ns", Name: "web"}
	for _, text := range []string{"fails the health check: port 81: HTTP status 503", "passes the health check"} {
		var list []endpointhealth.Change
		for _, at := range []string{"10.0.0.1:80", "10.0.0.1:81", "10.0.0.2:80", "10.0.0.3:80", "10.0.0.4:80", "[fd00::1]:80"} {
			list = append(list, endpointhealth.Change{Service: web, At: netip.MustParseAddrPort(at), Text: text})
			want = append(want, "endpoint "+at+" "+text)
		}
		teller.Publication(&Published{}, HealthCause(list), &topology.Node{})
	}
	list, _ := ring.List(&event.Filter{})
	var got []string
	for i := range list {
		got = append(got, list[i].Text)
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// An endpoint that becomes ready does not replace the event that it was not, and neither do many.
func TestOppositeChangesOfEndpointsAreTwoEvents(t *testing.T) {
	for _, n := range []int{1, eventsPerUpdate + 1} {
		ring := event.NewRing(slog.New(slog.DiscardHandler))
		teller := Teller{Events: ring}
		services := func(ready bool) *discovery.Service {
			s := &discovery.Service{Name: discovery.ServiceName{Namespace: "ns", Name: "web"}, Ports: []discovery.Port{{Port: 80, Protocol: "TCP"}}}
			for i := range n {
				at := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), 80)
				s.Ports[0].Endpoints = append(s.Ports[0].Endpoints, topology.Endpoint{AddrPort: at, Ready: ready, Serving: ready})
			}
			return s
		}
		for i := range 3 {
			is := services(i%2 == 1)
			up := &discovery.Update{Put: []*discovery.Service{is}}
			before := func(discovery.ServiceName) *discovery.Service { return services(i%2 == 0) }
			teller.Publication(&Published{}, CauseOf(up, false, before), &topology.Node{})
		}
		list, _ := ring.List(&event.Filter{})
		if len(list) != 2 || !strings.Contains(list[0].Text, " ready") || !strings.Contains(list[1].Text, " not-ready") || list[0].Count != 1 || list[1].Count != 2 {
			t.Errorf("%d endpoints: %+v", n, list)
		}
	}
}
