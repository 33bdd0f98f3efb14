package conntrack

import (
	"net/netip"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// Flows get each port of their range that is not excepted once, and no other port, also of a
// range that goes on behind the last port: as a slow model has it.
func TestPortsOfARange(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := NewFlow{PortLo: uint16(rapid.IntRange(65000, 65535).Draw(t, "lo"))}
		size := rapid.IntRange(1, 1500).Draw(t, "size")
		var model []uint16
		except := new(PortSet)
		for p := int(f.PortLo); len(model) < size; p++ {
			if p == 1<<16 {
				p = FirstPort
			}
			model = append(model, uint16(p))
		}
		f.PortHi = model[size-1]
		f.Except = except
		if !f.hasPorts() || int(f.ports()) != size {
			t.Fatalf("%d ports from %d to %d, want %d", f.ports(), f.PortLo, f.PortHi, size)
		}
		for range rapid.IntRange(0, 20).Draw(t, "exceptions") {
			i := rapid.IntRange(0, size-1).Draw(t, "from")
			for _, p := range model[i:min(size, i+rapid.IntRange(1, 100).Draw(t, "run"))] {
				except.Add(p, p)
			}
		}
		model = slices.DeleteFunc(model, except.Has)
		if len(model) == 0 {
			return
		}
		tbl, err := Open(Config{MaxFlows: 4096, Workers: 1})
		if err != nil {
			t.Fatal(err)
		}
		defer tbl.Close()
		w := tbl.Worker(0)
		w.Online()
		defer w.Offline()
		f.Endpoint, f.SNAT, f.Mode, f.Keep = ep1, snat, ModeNAT, KeepStreams
		var got []uint16
		for i := range size + 1 {
			f.Client = MakeKey(netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}), 999), vip, ProtoTCP)
			r, outcome := w.Create(&f)
			if want := i < len(model); want != (outcome == Created) {
				t.Fatalf("flow %d of %d: %v", i, len(model), outcome)
			}
			if outcome == Created {
				k := tbl.Entry(r.Other()).Tuple()
				got = append(got, k.Dst().Port())
			}
		}
		slices.Sort(got)
		slices.Sort(model)
		if !slices.Equal(got, model) {
			t.Fatalf("flows have ports %v, want %v", got, model)
		}
		// A port that is excepted by now does not pass on when its flow has ended.
		f.Except, f.Keep, f.Tick = new(PortSet), KeepNothing, 1000
		f.Except.Add(0, 65535)
		f.Client = MakeKey(netip.MustParseAddrPort("10.2.0.1:999"), vip, ProtoTCP)
		if _, outcome := w.Create(&f); outcome != NoPort {
			t.Fatalf("a flow gets an excepted port: %v", outcome)
		}
	})
}
