package changes

import (
	"log/slog"
	"net/netip"
	"slices"
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
