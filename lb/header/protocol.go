package header

import "strconv"

// Protocol numbers (IANA).
const (
	ProtoICMP   = 1
	ProtoTCP    = 6
	ProtoUDP    = 17
	ProtoICMPv6 = 58
	ProtoSCTP   = 132
)

// ProtocolName is the name that a transport protocol has in a Service, and the number of
// any other protocol.
func ProtocolName(proto uint8) string {
	switch proto {
	case ProtoTCP:
		return "TCP"
	case ProtoUDP:
		return "UDP"
	case ProtoSCTP:
		return "SCTP"
	}
	return strconv.Itoa(int(proto))
}

// ProtocolNumber is the number of a protocol with a ProtocolName. It reports false for
// any other name.
func ProtocolNumber(name string) (proto uint8, ok bool) {
	for _, p := range [...]uint8{ProtoTCP, ProtoUDP, ProtoSCTP} {
		if ProtocolName(p) == name {
			return p, true
		}
	}
	return 0, false
}
