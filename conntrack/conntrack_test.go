package conntrack

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"testing"
	"unsafe"
)

// openTest opens a small table and closes it at the end of the test.
func openTest(t testing.TB, cfg Config) *Table {
	t.Helper()
	if cfg.Workers == 0 {
		cfg.Workers = 1
	}
	if cfg.MaxFlows == 0 {
		cfg.MaxFlows = 4096
	}
	if cfg.MaxEndpoints == 0 {
		cfg.MaxEndpoints = 64
	}
	tab, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := tab.Close(); err != nil {
			t.Error(err)
		}
	})
	return tab
}

// openHeap makes a table on the Go heap: the race detector does not watch mapped
// memory.
func openHeap(t testing.TB, cfg Config) *Table {
	t.Helper()
	tab, err := newTable(cfg)
	if err != nil {
		t.Fatal(err)
	}
	p := planFor(int64(cfg.MaxFlows))
	tab.mem = &mapping{shared: heapBytes(p.size), index: heapBytes(p.index()), links: heapBytes(int64(cfg.MaxFlows) * linkSize)}
	o := opener{tab, cfg}
	o.viewFile(tab.mem.shared, p, int64(cfg.MaxFlows))
	o.viewPrivate(p)
	o.size()
	if err := o.initialize(int64(cfg.MaxFlows)); err != nil {
		t.Fatal(err)
	}
	return tab
}

func heapBytes(n int64) []byte {
	b := make([]byte, n+64)
	off := -uintptr(unsafe.Pointer(&b[0])) & 63
	return b[off : int64(off)+n]
}

func ap(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }

// client is the i-th client's address and port.
func client(i int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(i >> 24), byte(i >> 16), byte(i >> 8)}), uint16(1024+i&0xff))
}

var (
	vip   = ap("192.0.2.1:80")
	snat  = netip.MustParseAddr("198.51.100.1")
	ep1   = ap("10.99.0.1:8080")
	vip6  = ap("[2001:db8::80]:443")
	snat6 = netip.MustParseAddr("2001:db8:1::1")
	ep6   = ap("[2001:db8:2::7]:8443")
)

func natFlow(i int) *NewFlow {
	return &NewFlow{
		Client: MakeKey(client(i), vip, ProtoTCP), Endpoint: ep1, EndpointID: 3, ServiceID: 7,
		Mode: ModeNAT, SNAT: snat, PortLo: 61000, PortHi: 65535,
	}
}

func (t *Table) lookup(k Key) Ref { return t.index.find(t.Hash(&k), &k) }

func mustCreate(t testing.TB, w *Worker, f *NewFlow) Ref {
	t.Helper()
	r, o := w.Create(f)
	if o != Created {
		t.Fatalf("create: outcome %d", o)
	}
	return r
}

func TestBothDirectionsOfANATFlowAreFound(t *testing.T) {
	for _, path := range []string{"", filepath.Join(t.TempDir(), "flows")} {
		t.Run(fmt.Sprintf("file=%v", path != ""), func(t *testing.T) {
			tab := openTest(t, Config{Path: path})
			w := tab.Worker(0)
			w.Online()
			for i := range 1000 {
				f := natFlow(i)
				r := mustCreate(t, w, f)
				if got := tab.lookup(f.Client); got != r || !got.Forward() {
					t.Fatalf("flow %d: forward look-up gives %d, want %d", i, got, r)
				}
				answer := MakeKey(tab.NewDst(r), tab.NewSrc(r), ProtoTCP)
				back := tab.lookup(answer)
				if back != r.Other() || back.Conn() != r.Conn() {
					t.Fatalf("flow %d: reverse look-up gives %d, want %d", i, back, r.Other())
				}
				if tab.NewSrc(back) != vip || tab.NewDst(back) != client(i) {
					t.Fatalf("flow %d: answer becomes %v -> %v", i, tab.NewSrc(back), tab.NewDst(back))
				}
				if tab.NewDst(r) != ep1 || tab.NewSrc(r).Addr() != snat {
					t.Fatalf("flow %d: request becomes %v -> %v", i, tab.NewSrc(r), tab.NewDst(r))
				}
			}
			if n := tab.EndpointFlows(3); n != 1000 || tab.Flows() != 1000 {
				t.Fatalf("endpoint has %d flows, table %d, want 1000", n, tab.Flows())
			}
		})
	}
}

// netipAddrPort spreads the i-th flow over many endpoints.
func netipAddrPort(i int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 99, byte(i >> 8), byte(i)}), 8080)
}
