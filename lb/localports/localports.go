// Package localports finds the TCP and UDP ports that the node uses itself, or may use.
package localports

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math/bits"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/conntrack"
)

// sysctls are where the kernel's settings of ports are. They are of IPv6 too.
const sysctls = "/proc/sys/net/ipv4"

// Ephemeral adds to set the ports that the kernel gives to sockets which ask for none: those of
// ip_local_port_range without those of ip_local_reserved_ports. It adds the latter to reserved.
func Ephemeral(set, reserved *conntrack.PortSet) error {
	return ephemeral(sysctls, set, reserved)
}

func ephemeral(dir string, set, reserved *conntrack.PortSet) error {
	text, err := os.ReadFile(filepath.Join(dir, "ip_local_port_range"))
	if err != nil {
		return err
	}
	var lo, hi uint16
	if _, err := fmt.Sscan(string(text), &lo, &hi); err != nil {
		return fmt.Errorf("ip_local_port_range %q: %w", strings.TrimSpace(string(text)), err)
	}
	list, _ := os.ReadFile(filepath.Join(dir, "ip_local_reserved_ports")) // absent: none
	var kept conntrack.PortSet
	if err := parseList(string(list), &kept); err != nil {
		return fmt.Errorf("ip_local_reserved_ports: %w", err)
	}
	reserved.AddAll(&kept)
	for p := uint32(lo); p <= uint32(hi); p++ {
		if !kept.Has(uint16(p)) {
			set.Add(uint16(p), uint16(p))
		}
	}
	return nil
}

// parseList adds the ports of a list such as "8080,61000-65535"
// (Documentation/networking/ip-sysctl.rst).
func parseList(text string, set *conntrack.PortSet) error {
	for part := range strings.SplitSeq(strings.TrimSpace(text), ",") {
		if part == "" {
			continue
		}
		first, last, isRange := strings.Cut(part, "-")
		if !isRange {
			last = first
		}
		lo, errLo := strconv.ParseUint(first, 10, 16)
		hi, errHi := strconv.ParseUint(last, 10, 16)
		if errLo != nil || errHi != nil {
			return fmt.Errorf("%q is not a list of ports", text)
		}
		set.Add(uint16(lo), uint16(hi))
	}
	return nil
}

// Sockets adds the ports from lo to hi at which sockets of the calling thread's network namespace
// listen, or have another end: those that are closed but for TIME_WAIT are not among them. As in
// conntrack.NewFlow, hi may be below lo.
func Sockets(lo, hi uint16, set *conntrack.PortSet) error {
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		for _, proto := range []uint8{unix.IPPROTO_TCP, unix.IPPROTO_UDP} {
			if err := sockets(family, proto, filter(lo, hi), set); err != nil {
				return fmt.Errorf("sockets of the node: %w", err)
			}
		}
	}
	return nil
}

// allStates are all but TIME_WAIT, whose sockets may be many and take no packets of others.
const allStates = ^uint32(1 << unix.BPF_TCP_TIME_WAIT)

// sockets adds the ports of the sockets of a family and protocol that pass the filter.
func sockets(family, proto uint8, filter []byte, set *conntrack.PortSet) error {
	req := nl.NewNetlinkRequest(nl.SOCK_DIAG_BY_FAMILY, unix.NLM_F_DUMP)
	req.AddData(request{family, proto})
	req.AddData(nl.NewRtAttr(reqBytecode, filter))
	var short error
	// One after the other: the clients of a server of the node decide how many sockets there are.
	err := req.ExecuteIter(unix.NETLINK_INET_DIAG, 0, func(m []byte) bool {
		if len(m) < sportAt+2 {
			short = fmt.Errorf("an answer of %d bytes", len(m))
			return true
		}
		p := binary.BigEndian.Uint16(m[sportAt:])
		set.Add(p, p)
		return true
	})
	return cmp.Or(err, short)
}

// Of linux/inet_diag.h: the length of struct inet_diag_req_v2, the attribute with a filter, the
// place of the own port in struct inet_diag_msg, and operations of filters.
const (
	requestLen  = 56
	reqBytecode = 1
	sportAt     = 4
	jump        = 1
	sportGE     = 2
	sportLE     = 3
)

// request is struct inet_diag_req_v2.
type request struct{ family, proto uint8 }

func (r request) Len() int { return requestLen }

func (r request) Serialize() []byte {
	b := make([]byte, requestLen)
	b[0], b[1] = r.family, r.proto
	binary.NativeEndian.PutUint32(b[4:], allStates)
	return b
}

// filter is a program of the kernel's for ports of a range. An operation is {code, yes, no} with the
// port in the next one's no; yes and no are how far the program goes on: a jump by no. A socket
// passes where the program goes on exactly to the end. The kernel wants every operation on the path of yes.
func filter(lo, hi uint16) []byte {
	type op struct {
		code, yes uint8
		no        uint16
	}
	program := []op{{sportGE, 8, 20}, {no: lo}, {sportLE, 8, 12}, {no: hi}}
	if hi < lo { // either is enough; lower ports may be those of a server with many clients
		program = []op{{sportGE, 8, 12}, {no: lo}, {jump, 4, 20}, {sportLE, 8, 20}, {no: hi}, {sportGE, 8, 12}, {no: conntrack.FirstPort}}
	}
	b := make([]byte, 0, 4*len(program))
	for _, o := range program {
		b = append(b, o.code, o.yes)
		b = binary.NativeEndian.AppendUint16(b, o.no)
	}
	return b
}

// A Range is the part of the ports that may be taken: as PortLo and PortHi of
// conntrack.NewFlow.
type Range struct{ Lo, Hi uint16 }

// Text is the range as ports from and to, both included.
func (r Range) Text() string {
	if r.Hi < r.Lo {
		return fmt.Sprintf("%d-65535,%d-%d", r.Lo, conntrack.FirstPort, r.Hi)
	}
	return fmt.Sprintf("%d-%d", r.Lo, r.Hi)
}

// Count is the number of ports of the range that are not in except.
func (r Range) Count(except *conntrack.PortSet) (n int) {
	var all conntrack.PortSet
	if r.Hi < r.Lo {
		all.Add(r.Lo, 65535)
		all.Add(conntrack.FirstPort, r.Hi)
	} else {
		all.Add(r.Lo, r.Hi)
	}
	for i, w := range all {
		if except != nil {
			w &^= except[i]
		}
		n += bits.OnesCount64(w)
	}
	return n
}

// Within is the range without those of taken at both of its ends. The range must have another port.
func (r Range) Within(taken *conntrack.PortSet) Range {
	for r.Lo != r.Hi && taken.Has(r.Lo) {
		if r.Lo++; r.Lo == 0 {
			r.Lo = conntrack.FirstPort
		}
	}
	for r.Hi != r.Lo && taken.Has(r.Hi) {
		if r.Hi == conntrack.FirstPort && r.Lo > r.Hi {
			r.Hi = 0
		}
		r.Hi--
	}
	return r
}
