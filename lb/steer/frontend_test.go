package steer

import (
	"cmp"
	"errors"
	"net/netip"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/perf/netlab/labtest"
)

func TestFrontendsAreListedAsTheyWereAdded(t *testing.T) {
	labtest.Require(t)
	p := closed(t, load(t, Config{}))
	want := []Frontend{
		{netip.MustParseAddrPort("192.0.2.1:80"), unix.IPPROTO_TCP, 1},
		{netip.MustParseAddrPort("192.0.2.1:80"), unix.IPPROTO_UDP, 2},
		{netip.MustParseAddrPort("192.0.2.1:65535"), unix.IPPROTO_TCP, 0},
		{netip.MustParseAddrPort("[2001:db8::1]:80"), unix.IPPROTO_TCP, 0},
		// Not the IPv4 address that it begins with.
		{netip.MustParseAddrPort("[c000:201::]:80"), unix.IPPROTO_TCP, 0},
	}
	for _, f := range want {
		must(t, p.AddFrontend(f.AddrPort, f.Proto, 99))
		must(t, p.AddFrontend(f.AddrPort, f.Proto, f.Flags))
	}
	check := func(want []Frontend) {
		t.Helper()
		got, err := p.Frontends()
		must(t, err)
		order := func(a, b Frontend) int {
			return cmp.Or(a.AddrPort.Compare(b.AddrPort), cmp.Compare(a.Proto, b.Proto))
		}
		slices.SortFunc(got, order)
		slices.SortFunc(want, order)
		if !slices.Equal(got, want) {
			t.Errorf("frontends %v, want %v", got, want)
		}
	}
	check(want)
	gone := want[0]
	must(t, p.RemoveFrontend(gone.AddrPort, gone.Proto))
	must(t, p.RemoveFrontend(gone.AddrPort, gone.Proto))
	check(want[1:])
	// An IPv4-mapped address is the IPv4 address.
	must(t, p.RemoveFrontend(netip.MustParseAddrPort("[::ffff:192.0.2.1]:80"), unix.IPPROTO_UDP))
	check(slices.DeleteFunc(want[1:], func(f Frontend) bool {
		return f.Proto == unix.IPPROTO_UDP
	}))
}

func TestAFullMapSaysSo(t *testing.T) {
	labtest.Require(t)
	p := closed(t, load(t, Config{MaxFrontends: 2, MaxSNAT: 1}))
	addr := netip.MustParseAddr("192.0.2.1")
	must(t, p.AddFrontend(at(addr, 1), unix.IPPROTO_TCP, 0))
	must(t, p.AddFrontend(at(addr, 2), unix.IPPROTO_TCP, 0))
	err := p.AddFrontend(at(addr, 3), unix.IPPROTO_TCP, 0)
	if !errors.Is(err, ErrFull) {
		t.Fatalf("third of two: %v", err)
	}
	t.Log(err)
	must(t, p.AddFrontend(at(addr, 2), unix.IPPROTO_TCP, 7)) // is there already
	must(t, p.RemoveFrontend(at(addr, 1), unix.IPPROTO_TCP))
	must(t, p.AddFrontend(at(addr, 3), unix.IPPROTO_TCP, 0))

	for i := range uint16(MaxRanges) {
		must(t, p.AddRange(at(addr, 100*i+100), 100*i+199, unix.IPPROTO_TCP, 0))
		must(t, p.AddRange(at(addr, 100*i+100), 100*i+199, unix.IPPROTO_TCP, FlowsOnly))
	}
	if err := p.AddRange(at(addr, 5000), 5001, unix.IPPROTO_TCP, 0); !errors.Is(err, ErrManyRanges) {
		t.Fatalf("a range too many: %v", err)
	}
	must(t, p.AddRange(at(addr, 5000), 5001, unix.IPPROTO_UDP, 0))
	must(t, p.RemoveRange(at(addr, 200), 299, unix.IPPROTO_TCP))
	must(t, p.RemoveRange(at(addr, 200), 299, unix.IPPROTO_TCP))
	must(t, p.AddRange(at(addr, 5000), 5001, unix.IPPROTO_TCP, 0))

	must(t, p.SetSNAT(addr, 61000, 65535))
	must(t, p.SetSNAT(addr, 1024, 65535))
	if err := p.SetSNAT(addr.Next(), 61000, 65535); !errors.Is(err, ErrFull) {
		t.Fatalf("second of one: %v", err)
	}
	must(t, p.RemoveSNAT(addr))
	must(t, p.RemoveSNAT(addr))
	must(t, p.SetSNAT(addr.Next(), 61000, 65535))
}

func TestImpossibleEntriesAreRefused(t *testing.T) {
	labtest.Require(t)
	p := closed(t, load(t, Config{}))
	good := netip.MustParseAddrPort("192.0.2.1:80")
	for name, err := range map[string]error{
		"no address":        p.AddFrontend(netip.AddrPort{}, unix.IPPROTO_TCP, 0),
		"port 0":            p.AddFrontend(at(good.Addr(), 0), unix.IPPROTO_TCP, 0),
		"GRE":               p.AddFrontend(good, unix.IPPROTO_GRE, 0),
		"address with zone": p.AddFrontend(netip.MustParseAddrPort("[fe80::1%eth0]:80"), unix.IPPROTO_TCP, 0),
		"no SNAT address":   p.SetSNAT(netip.Addr{}, 1, 2),
		"range backwards":   p.SetSNAT(good.Addr(), 2, 1),
		"range from 0":      p.SetSNAT(good.Addr(), 0, 1),
		"queue 64":          p.SetSocket(0, MaxQueues, 0),
		"slot -1":           p.SetSocket(-1, 0, 0),
	} {
		if err == nil {
			t.Errorf("%s: accepted", name)
		}
		t.Log(err)
	}
}
