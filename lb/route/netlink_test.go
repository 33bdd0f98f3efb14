package route

import (
	"encoding/binary"
	"net/netip"
	"reflect"
	"testing"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

func attr(kind int, value []byte) []byte { return nl.NewRtAttr(kind, value).Serialize() }

func word(v uint32) []byte { return binary.NativeEndian.AppendUint32(nil, v) }

// rtmsg is a route message as the kernel writes it.
func rtmsg(family, bits, table, kind byte, attrs ...[]byte) []byte {
	m := []byte{family, bits, 0, 0, table, 0, 0, kind, 0, 0, 0, 0}
	for _, a := range attrs {
		m = append(m, a...)
	}
	return m
}

func TestParseRoute(t *testing.T) {
	nexthop := func(index uint32, hops byte, attrs ...[]byte) []byte {
		n := []byte{0, 0, 0, hops}
		n = append(n, word(index)...)
		for _, a := range attrs {
			n = append(n, a...)
		}
		binary.NativeEndian.PutUint16(n, uint16(len(n)))
		return n
	}
	gw := netip.MustParseAddr
	for _, tc := range []struct {
		name string
		m    []byte
		want kernelRoute
	}{
		{"default route", rtmsg(unix.AF_INET, 0, 254, unix.RTN_UNICAST,
			attr(unix.RTA_GATEWAY, []byte{192, 0, 2, 9}), attr(unix.RTA_OIF, word(3)), attr(unix.RTA_PRIORITY, word(100))),
			kernelRoute{table: 254, kind: unix.RTN_UNICAST, dst: netip.MustParsePrefix("0.0.0.0/0"), metric: 100,
				hops: []hop{{index: 3, gateway: gw("192.0.2.9"), weight: 1}}}},
		{"weights", rtmsg(unix.AF_INET, 8, 254, unix.RTN_UNICAST, attr(unix.RTA_DST, []byte{10, 0, 0, 0}),
			attr(unix.RTA_MULTIPATH, append(nexthop(3, 0, attr(unix.RTA_GATEWAY, []byte{192, 0, 2, 9})), nexthop(4, 2)...))),
			kernelRoute{table: 254, kind: unix.RTN_UNICAST, dst: netip.MustParsePrefix("10.0.0.0/8"),
				hops: []hop{{index: 3, gateway: gw("192.0.2.9"), weight: 1}, {index: 4, weight: 3}}}},
		{"next hop of the other family", rtmsg(unix.AF_INET, 8, 254, unix.RTN_UNICAST, attr(unix.RTA_DST, []byte{10, 0, 0, 0}),
			attr(unix.RTA_OIF, word(3)), attr(unix.RTA_VIA, append([]byte{unix.AF_INET6, 0}, gw("fe80::9").AsSlice()...))),
			kernelRoute{table: 254, kind: unix.RTN_UNICAST, dst: netip.MustParsePrefix("10.0.0.0/8"),
				hops: []hop{{index: 3, gateway: gw("fe80::9"), weight: 1}}}},
		{"encapsulation", rtmsg(unix.AF_INET6, 48, 254, unix.RTN_UNICAST, attr(unix.RTA_DST, gw("2001:db8::").AsSlice()),
			attr(unix.RTA_OIF, word(3)), attr(unix.RTA_ENCAP_TYPE, []byte{5, 0})),
			kernelRoute{table: 254, kind: unix.RTN_UNICAST, dst: netip.MustParsePrefix("2001:db8::/48"), hops: []hop{{index: 3, weight: 1, encap: true}}}},
		{"large table number", rtmsg(unix.AF_INET, 0, unix.RT_TABLE_COMPAT, unix.RTN_BLACKHOLE, attr(unix.RTA_TABLE, word(1000))),
			kernelRoute{table: 1000, kind: unix.RTN_BLACKHOLE, dst: netip.MustParsePrefix("0.0.0.0/0")}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, ok, err := parseRoute(tc.m)
			if err != nil || !ok || !reflect.DeepEqual(got, tc.want) {
				t.Errorf("%+v %v %v\nwant %+v", got, ok, err, tc.want)
			}
		})
	}
}

// The kernel is trusted, but a message cut short must not take Weir down.
func FuzzParseRoute(f *testing.F) {
	f.Add(rtmsg(unix.AF_INET, 8, 254, unix.RTN_UNICAST, attr(unix.RTA_DST, []byte{10, 0, 0, 0}),
		attr(unix.RTA_MULTIPATH, []byte{8, 0, 0, 0, 3, 0, 0, 0})))
	f.Add(rtmsg(unix.AF_INET6, 200, 254, unix.RTN_UNICAST, attr(unix.RTA_DST, []byte{10}), attr(unix.RTA_METRICS, []byte{1, 2, 3})))
	f.Fuzz(func(t *testing.T, m []byte) {
		if r, ok, err := parseRoute(m); err == nil && ok && !r.dst.IsValid() {
			t.Errorf("route without a prefix: %+v", r)
		}
	})
}

func FuzzParseNeighbor(f *testing.F) {
	m := append([]byte{unix.AF_INET, 0, 0, 0, 3, 0, 0, 0, 2, 0, 0, 1}, attr(unix.NDA_DST, []byte{192, 0, 2, 9})...)
	f.Add(append(m, attr(unix.NDA_LLADDR, []byte{2, 0, 0, 0, 0, 1})...))
	f.Fuzz(func(t *testing.T, m []byte) {
		if k, _, ok := parseNeighbor(m); ok && !k.addr.IsValid() {
			t.Errorf("neighbor without an address: %+v", k)
		}
	})
}
