package conntrack

import (
	"maps"
	"net/netip"
	"os"
	"runtime"
	"testing"
)

// anyFlow is a connection of any family and mode.
func anyFlow(i int) *NewFlow {
	f := natFlow(i)
	f.Endpoint = netipAddrPort(i)
	switch i % 4 {
	case 1:
		f = natFlow6(i)
		a := netip.MustParseAddr("2001:db8::1").As16()
		a[13], a[14], a[15] = byte(i>>16), byte(i>>8), byte(i)
		f.Client, f.PortLo = MakeKey(netip.AddrPortFrom(netip.AddrFrom16(a), 999), vip6, ProtoTCP), 1024
	case 2:
		f.Mode, f.SNAT, f.Client = ModeGUE, netip.Addr{}, MakeKey(client(i), vip, ProtoUDP)
	case 3:
		f.Client = MakeKey(client(i), vip, ProtoUDP)
	}
	return f
}

// Several goroutines restore the same connections as one, also where some are damaged, and some
// are there twice.
func TestALargeTableIsRestoredInParts(t *testing.T) {
	const parts = 9
	cfg := fileConfig(t)
	cfg.MaxFlows = parts * restoreStep
	last := open(t, cfg)
	w := last.Worker(0)
	w.Online()
	for i := range (parts - 1) * restoreStep {
		mustCreate(t, w, anyFlow(i))
	}
	w.Offline()
	// All of these in parts that are restored in parallel.
	bound, damaged, twice := last.bound.Load(), 0, 0
	for conn := uint32(restoreAlone + restoreStep); conn < bound-restoreStep; conn += 97 {
		switch from := conn + restoreStep; {
		case conn%3 == 0:
			last.entries[2*conn].NewPorts ^= 1
			damaged++
		case from < bound-1:
			last.conns[conn] = last.conns[from]
			copy(last.entries[2*conn:2*conn+2], last.entries[2*from:2*from+2])
			twice++
		}
	}
	if err := last.Close(); err != nil {
		t.Fatal(err)
	}
	left, err := os.ReadFile(cfg.Path)
	if err != nil {
		t.Fatal(err)
	}

	var alone map[Key]string
	for _, cpus := range []int{1, 8, 8} {
		if err := os.WriteFile(cfg.Path, left, 0o600); err != nil {
			t.Fatal(err)
		}
		old := runtime.GOMAXPROCS(cpus)
		next := open(t, cfg)
		runtime.GOMAXPROCS(old)
		a := next.Restoration()
		t.Logf("%d CPUs: %d connections, %d left out", cpus, a.Flows, a.Discarded)
		if a.Discarded != a.DiscardedBy[Damaged] || a.Flows+a.Discarded != int(bound) {
			t.Errorf("%d CPUs: %+v", cpus, a)
		}
		got := snapshot(next)
		if alone == nil {
			alone = got
			if a.Discarded < damaged || a.Discarded > damaged+2*twice {
				t.Errorf("%d damaged, %d twice: %d left out", damaged, twice, a.Discarded)
			}
		}
		if !maps.Equal(got, alone) || next.bound.Load() != bound {
			t.Errorf("%d CPUs: %d connections below %d, not the %d below %d of one CPU", cpus, len(got), next.bound.Load(), len(alone), bound)
		}
		checkSurvived(t, next, got)
		if v, err := next.Verify(t.Context()); err != nil || len(v.Faults) > 0 {
			t.Errorf("%d CPUs: %v %v", cpus, v, err)
		}
		if err := next.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
