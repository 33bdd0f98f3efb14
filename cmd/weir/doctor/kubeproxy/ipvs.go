package kubeproxy

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"strconv"
	"strings"
)

// readIPVS reads the kernel's list of virtual servers. The module need not be there.
func readIPVS(to *Rules) error {
	// thread-self: /proc/net would be that of the first thread.
	data, err := os.ReadFile("/proc/thread-self/net/ip_vs")
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("ipvs: %w", err)
	}
	to.Frontends = parseIPVS(string(data))
	return nil
}

// parseIPVS reads /proc/net/ip_vs (ip_vs_info_seq_show): a line per virtual server, followed by
// lines of destinations, which begin with an arrow. Addresses and ports are hexadecimal.
// Destinations of weight 0 get no new connections. Node ports are on each address.
func parseIPVS(text string) map[Frontend]Target {
	all := map[Frontend]Target{}
	var at Frontend
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		switch {
		case len(words) >= 4 && words[0] == "->":
			ap, ok := ipvsAddress(words[1])
			weight, err := strconv.Atoi(words[3])
			if ok && err == nil && weight > 0 && at.Port != 0 {
				t := all[at]
				t.Endpoints = sorted(append(t.Endpoints, ap))
				all[at] = t
			}
		case len(words) >= 2 && (words[0] == "TCP" || words[0] == "UDP" || words[0] == "SCTP"):
			ap, ok := ipvsAddress(words[1])
			at = Frontend{}
			if ok {
				at = Frontend{Addr: ap.Addr(), IPv6: ap.Addr().Is6(), Port: ap.Port(), Protocol: words[0]}
				all[at] = Target{}
			}
		default:
			at = Frontend{} // a firewall mark, or a heading
		}
	}
	return all
}

// ipvsAddress reads 0A600001:0050, or [fd00:0000:...:0001]:0050.
func ipvsAddress(s string) (netip.AddrPort, bool) {
	i := strings.LastIndexByte(s, ':')
	if i < 0 {
		return netip.AddrPort{}, false
	}
	port, err := strconv.ParseUint(s[i+1:], 16, 16)
	if err != nil {
		return netip.AddrPort{}, false
	}
	var a netip.Addr
	if six, ok := strings.CutPrefix(s[:i], "["); ok {
		a, err = netip.ParseAddr(strings.TrimSuffix(six, "]"))
	} else {
		var b []byte
		if b, err = hex.DecodeString(s[:i]); err == nil && len(b) == 4 {
			a = netip.AddrFrom4([4]byte(b))
		}
	}
	return netip.AddrPortFrom(a, uint16(port)), err == nil && a.IsValid()
}
