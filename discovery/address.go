package discovery

import (
	"fmt"
	"net/netip"
	"strconv"

	utilnet "k8s.io/utils/net"
)

// ParseAddr takes an address as Kubernetes does: IPv4 octets may have leading
// zeros, which are decimal, and an IPv4-mapped IPv6 address is IPv4.
func ParseAddr(s string) (netip.Addr, bool) {
	a, err := netip.ParseAddr(s)
	if err != nil {
		ip, ok := netip.AddrFromSlice(utilnet.ParseIPSloppy(s))
		if !ok {
			return netip.Addr{}, false
		}
		a = ip
	}
	return a.Unmap(), a.Zone() == ""
}

// SpecialAddr says why traffic must not be sent to a or taken for it, "" when
// nothing is wrong with it. The wording is the API server's.
func SpecialAddr(a netip.Addr) string {
	switch {
	case a.IsUnspecified():
		return fmt.Sprintf("may not be unspecified (%v)", a)
	case a.IsLoopback():
		return "may not be in the loopback range (127.0.0.0/8, ::1/128)"
	case a.IsLinkLocalUnicast():
		return "may not be in the link-local range (169.254.0.0/16, fe80::/10)"
	case a.IsLinkLocalMulticast():
		return "may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)"
	case a.IsMulticast():
		return "may not be in the multicast range (224.0.0.0/4, ff00::/8)"
	case a == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return "may not be the limited broadcast address"
	}
	return ""
}

// checkAddr parses and checks an address; the reason is "" when it is valid.
func checkAddr(s string) (netip.Addr, string) {
	a, ok := ParseAddr(s)
	if !ok {
		return a, "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"
	}
	return a, SpecialAddr(a)
}

// invalid, duplicate, notSupported and required word a complaint as the API
// server does. Values are quoted and cut: they come from outside.
func invalid(path, value, reason string) string { return path + ": " + invalidValue(value, reason) }

func invalidValue(value, reason string) string {
	return "Invalid value: " + quote(value) + ": " + reason
}

func invalidInt(path string, value int, reason string) string {
	return path + ": Invalid value: " + strconv.Itoa(value) + ": " + reason
}

func duplicate(path, value string) string { return path + ": Duplicate value: " + quote(value) }

func notSupported(path, value, values string) string {
	return path + ": " + unsupportedValue(value, values)
}

func unsupportedValue(value, values string) string {
	return "Unsupported value: " + quote(value) + ": supported values: " + values
}

func quote(s string) string {
	const most = 64
	return strconv.Quote(Shortened(s, most+len("...")))
}

const portRange = "must be between 1 and 65535, inclusive"

// index is path[i].
func index(path string, i int) string { return path + "[" + strconv.Itoa(i) + "]" }
