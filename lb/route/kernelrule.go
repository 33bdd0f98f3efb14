package route

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// kernelRule is a routing rule. The netlink package leaves out actions and new conditions.
type kernelRule struct {
	family          uint8
	priority, table int
	action          uint8
	not, vrf, tun   bool
	tos             uint8
	src, dst        netip.Prefix // invalid: any
	in, out         string       // interfaces, "" for any
	mark, mask      uint32
	proto           uint8
	sports, dports  portRange
	uids            [2]uint32 // first and last; {1, 0}: any
	// suppressLength and suppressGroup are -1 if no route is suppressed.
	suppressLength, suppressGroup int
	// unknown is an attribute that may be a condition, 0 for none.
	unknown uint16
}

// Actions of a rule, see linux/fib_rules.h.
const (
	actionTable       = 1
	actionGoto        = 2
	actionNop         = 3
	actionBlackhole   = 6
	actionUnreachable = 7
	actionProhibit    = 8
)

// rules lists the routing rules of both families in the kernel's order.
func (c *conn) rules() (list []kernelRule, err error) {
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		req := c.request(unix.RTM_GETRULE, unix.NLM_F_DUMP)
		req.AddData(&nl.RtMsg{RtMsg: unix.RtMsg{Family: family}})
		var bad error
		err := req.ExecuteIter(unix.NETLINK_ROUTE, unix.RTM_NEWRULE, func(m []byte) bool {
			var r kernelRule
			if r, bad = parseRule(m); bad == nil && r.family == family {
				list = append(list, r)
			}
			return bad == nil
		})
		if err == nil {
			err = bad
		}
		if err != nil {
			return nil, fmt.Errorf("list routing rules: %w", err)
		}
	}
	return list, nil
}

// parseRule decodes a fib_rule_hdr with its attributes.
func parseRule(m []byte) (kernelRule, error) {
	r := kernelRule{uids: [2]uint32{1, 0}, suppressLength: -1, suppressGroup: -1}
	if len(m) < unix.SizeofRtMsg {
		return r, errShort
	}
	r.family, r.tos, r.table, r.action = m[0], m[3], int(m[4]), m[7]
	r.not = binary.NativeEndian.Uint32(m[8:])&unix.FIB_RULE_INVERT != 0
	err := attributes(m[unix.SizeofRtMsg:], func(kind uint16, v []byte) error {
		switch kind {
		case unix.FRA_DST:
			r.dst = rulePrefix(v, m[1])
		case unix.FRA_SRC:
			r.src = rulePrefix(v, m[2])
		case unix.FRA_IIFNAME:
			r.in = unix.ByteSliceToString(v)
		case unix.FRA_OIFNAME:
			r.out = unix.ByteSliceToString(v)
		default:
			r.number(kind, v)
		}
		return nil
	})
	return r, err
}

// Attributes that golang.org/x/sys does not name.
const (
	fraSportMask = 28
	fraDportMask = 29
)

// number takes the attributes that are numbers.
func (r *kernelRule) number(kind uint16, v []byte) {
	switch kind {
	case unix.FRA_PRIORITY:
		r.priority = int(u32(v))
	case unix.FRA_TABLE:
		r.table = int(u32(v))
	case unix.FRA_FWMARK:
		r.mark = u32(v)
	case unix.FRA_FWMASK:
		r.mask = u32(v)
	case unix.FRA_TUN_ID:
		r.tun = true
	case unix.FRA_L3MDEV:
		r.vrf = true
	case unix.FRA_SUPPRESS_PREFIXLEN:
		r.suppressLength = int(int32(u32(v)))
	case unix.FRA_SUPPRESS_IFGROUP:
		r.suppressGroup = int(int32(u32(v)))
	case unix.FRA_IP_PROTO:
		if len(v) > 0 {
			r.proto = v[0]
		}
	case unix.FRA_UID_RANGE:
		if len(v) >= 8 {
			r.uids = [2]uint32{u32(v), u32(v[4:])}
		}
	case unix.FRA_SPORT_RANGE:
		r.sports = newPortRange(v)
	case unix.FRA_DPORT_RANGE:
		r.dports = newPortRange(v)
	case fraSportMask, fraDportMask:
		if len(v) != 2 || v[0] != 0xff || v[1] != 0xff {
			r.unknown = kind
		}
	case unix.FRA_GOTO, unix.FRA_FLOW, unix.FRA_PROTOCOL, unix.FRA_PAD:
	default:
		r.unknown = kind
	}
}

func newPortRange(v []byte) portRange {
	if len(v) < 4 {
		return portRange{}
	}
	return portRange{binary.NativeEndian.Uint16(v), binary.NativeEndian.Uint16(v[2:])}
}

func rulePrefix(v []byte, bits byte) netip.Prefix {
	a, _ := netip.AddrFromSlice(v)
	return netip.PrefixFrom(a, int(bits))
}

// plain reports whether the rule is for all packets, with all routes of its table.
func (r *kernelRule) plain() bool {
	return *r == kernelRule{
		family: r.family, priority: r.priority, table: r.table, action: actionTable,
		uids: [2]uint32{1, 0}, suppressLength: -1, suppressGroup: -1,
	}
}

// isDefault reports whether the kernel has the rule by itself.
func (r *kernelRule) isDefault() bool {
	switch r.table {
	case unix.RT_TABLE_LOCAL:
		return r.plain() && r.priority == 0
	case unix.RT_TABLE_MAIN:
		return r.plain() && r.priority == 32766
	}
	return r.plain() && r.table == unix.RT_TABLE_DEFAULT && r.priority == 32767
}

// String is the rule as `ip rule` shows it.
func (r *kernelRule) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d: ", r.priority)
	if r.not {
		b.WriteString("not ")
	}
	b.WriteString("from ")
	if r.src.IsValid() {
		b.WriteString(r.src.String())
	} else {
		b.WriteString("all")
	}
	if r.dst.IsValid() {
		fmt.Fprintf(&b, " to %s", r.dst)
	}
	if r.tos != 0 {
		fmt.Fprintf(&b, " tos %#x", r.tos)
	}
	if r.in != "" {
		fmt.Fprintf(&b, " iif %s", r.in)
	}
	if r.out != "" {
		fmt.Fprintf(&b, " oif %s", r.out)
	}
	if r.proto != 0 {
		fmt.Fprintf(&b, " ipproto %d", r.proto)
	}
	if r.sports != (portRange{}) {
		fmt.Fprintf(&b, " sport %d-%d", r.sports.first, r.sports.last)
	}
	if r.dports != (portRange{}) {
		fmt.Fprintf(&b, " dport %d-%d", r.dports.first, r.dports.last)
	}
	b.WriteString(r.result())
	if r.family == unix.AF_INET6 {
		b.WriteString(" (IPv6)")
	}
	return b.String()
}

func (r *kernelRule) result() string {
	switch r.action {
	case actionGoto:
		return " goto another"
	case actionNop:
		return " nop"
	case actionBlackhole:
		return " blackhole"
	case actionUnreachable:
		return " unreachable"
	case actionProhibit:
		return " prohibit"
	}
	if r.vrf {
		return " lookup [l3mdev-table]"
	}
	return fmt.Sprintf(" lookup %d", r.table)
}
