package api

import (
	"net/netip"
	"testing"
)

func TestFlowFilter(t *testing.T) {
	client, frontend, endpoint := netip.MustParseAddrPort("192.0.2.7:4000"), netip.MustParseAddrPort("198.51.100.1:80"), netip.MustParseAddrPort("[2001:db8::5]:8080")
	for _, tt := range []struct {
		filter FlowFilter
		want   bool
	}{
		{FlowFilter{}, true},
		{FlowFilter{Client: "192.0.2.7"}, true},
		{FlowFilter{Client: "192.0.2.0/24", Frontend: "198.51.100.1:80"}, true},
		{FlowFilter{Client: "192.0.2.7:4001"}, false},
		{FlowFilter{Endpoint: "2001:db8::5"}, true},
		{FlowFilter{Endpoint: "[2001:db8::5]:8080", State: "established"}, true},
		{FlowFilter{Endpoint: "2001:db8::6"}, false},
		{FlowFilter{Service: "shop/web", State: "tcp-established"}, true},
		{FlowFilter{Service: "shop/we"}, false},
		{FlowFilter{State: "closing"}, false},
	} {
		m, err := tt.filter.Matcher()
		if err != nil {
			t.Fatal(err)
		}
		if got := m.Tuple(client, frontend, endpoint) && m.Rest("shop/web", "tcp-established"); got != tt.want {
			t.Errorf("%+v: %v", tt.filter, got)
		}
	}
	for _, tt := range []struct {
		filter FlowFilter
		want   string
	}{
		{FlowFilter{Client: "192.0.2"}, `client: must be ADDRESS, ADDRESS:PORT or a CIDR, is "192.0.2"`},
		{FlowFilter{Frontend: "192.0.2.7:0"}, `frontend: port 0 is no port, in "192.0.2.7:0": ADDRESS alone has every port`},
		{FlowFilter{Endpoint: "[2001:db8::5]:0"}, `endpoint: port 0 is no port, in "[2001:db8::5]:0": ADDRESS alone has every port`},
	} {
		if _, err := tt.filter.Matcher(); err == nil || err.Error() != tt.want {
			t.Errorf("%+v: %v", tt.filter, err)
		}
	}
}
