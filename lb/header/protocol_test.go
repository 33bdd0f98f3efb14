package header

import "testing"

func TestProtocolNames(t *testing.T) {
	for name, proto := range map[string]uint8{"TCP": ProtoTCP, "UDP": ProtoUDP, "SCTP": ProtoSCTP} {
		if got := ProtocolName(proto); got != name {
			t.Errorf("%d is %s, want %s", proto, got, name)
		}
		if got, ok := ProtocolNumber(name); !ok || got != proto {
			t.Errorf("%s is %d %v, want %d", name, got, ok, proto)
		}
	}
	if got := ProtocolName(ProtoICMP); got != "1" {
		t.Errorf("ICMP is %s", got)
	}
	for _, name := range []string{"", "tcp", "6", "ICMP"} {
		if got, ok := ProtocolNumber(name); ok {
			t.Errorf("%q is %d", name, got)
		}
	}
}
