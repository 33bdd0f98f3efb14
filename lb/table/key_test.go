package table

import (
	"net/netip"
	"testing"

	"github.com/weirlb/weir/conntrack"
)

func TestKeysOfATupleAreTheFrontends(t *testing.T) {
	for _, tt := range []struct{ src, dst string }{
		{"192.0.2.1:40000", "203.0.113.7:80"},
		{"[2001:db8::1]:40000", "[2001:db8::7]:443"},
	} {
		for _, proto := range []uint8{conntrack.ProtoTCP, conntrack.ProtoUDP, conntrack.ProtoSCTP} {
			dst := netip.MustParseAddrPort(tt.dst)
			k := conntrack.MakeKey(netip.MustParseAddrPort(tt.src), dst, proto)
			if got, want := DestinationKey(&k.W), MakeKey(dst, proto); got != want {
				t.Errorf("%v of protocol %d: %+v, want %+v", tt, proto, got, want)
			}
			if got, want := SourceKey(&k.W), MakeKey(netip.MustParseAddrPort(tt.src), proto); got != want {
				t.Errorf("%v of protocol %d, back: %+v, want %+v", tt, proto, got, want)
			}
		}
	}
}
