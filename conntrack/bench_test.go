package conntrack

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"testing"

	"github.com/weirlb/weir/conntrack/tcp"
)

var benchSizes = []int{1 << 16, 1 << 20}

// filled opens a table with n flows and returns their keys, shuffled.
func filled(b *testing.B, n int) (*Table, []Key) {
	b.Helper()
	tab := openTest(b, Config{MaxFlows: 2 * n})
	w := tab.Worker(0)
	w.Online()
	keys := make([]Key, n)
	f := natFlow(0)
	for i := range n {
		f.Client = MakeKey(client(i), vip, ProtoTCP)
		f.Endpoint = ep1
		f.PortLo = 1024
		f.Endpoint = netipAddrPort(i)
		mustCreate(b, w, f)
		keys[i] = f.Client
		if i%64 == 0 {
			w.Quiesce()
		}
	}
	rand.Shuffle(n, func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
	return tab, keys
}

func BenchmarkLookupBatch(b *testing.B) {
	for _, n := range benchSizes {
		b.Run(fmt.Sprintf("flows=%d", n), func(b *testing.B) {
			tab, keys := filled(b, n)
			w := tab.Worker(0)
			var h [64]uint64
			var out [64]Ref
			b.ReportAllocs()
			at := 0
			for b.Loop() {
				k := keys[at : at+64]
				for i := range k {
					h[i] = tab.Hash(&k[i])
				}
				w.LookupBatch(h[:], k, out[:])
				for _, r := range out {
					tab.TrackTCP(r, &tcp.Segment{Flags: tcp.FlagACK}, 1)
				}
				w.Quiesce()
				if at += 64; at == n {
					at = 0
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/64, "ns/packet")
		})
	}
}

func BenchmarkLookup(b *testing.B) {
	for _, n := range benchSizes {
		b.Run(fmt.Sprintf("flows=%d", n), func(b *testing.B) {
			tab, keys := filled(b, n)
			w := tab.Worker(0)
			b.ReportAllocs()
			at := 0
			for b.Loop() {
				k := &keys[at]
				if w.Lookup(tab.Hash(k), k) == 0 {
					b.Fatal("flow not found")
				}
				if at++; at == n {
					at = 0
				}
			}
		})
	}
}

func BenchmarkLookupMiss(b *testing.B) {
	for _, n := range benchSizes {
		b.Run(fmt.Sprintf("flows=%d", n), func(b *testing.B) {
			tab, keys := filled(b, n)
			for i := range keys {
				keys[i].W[0] ^= 0xff << 56
			}
			w := tab.Worker(0)
			var h [64]uint64
			var out [64]Ref
			b.ReportAllocs()
			at := 0
			for b.Loop() {
				k := keys[at : at+64]
				for i := range k {
					h[i] = tab.Hash(&k[i])
				}
				w.LookupBatch(h[:], k, out[:])
				if at += 64; at == n {
					at = 0
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/64, "ns/packet")
		})
	}
}

func BenchmarkCreateDelete(b *testing.B) {
	for _, n := range benchSizes {
		b.Run(fmt.Sprintf("flows=%d", n), func(b *testing.B) {
			tab, _ := filled(b, n)
			w := tab.Worker(0)
			f := natFlow(0)
			b.ReportAllocs()
			i := n
			for b.Loop() {
				f.Client = MakeKey(client(i), vip, ProtoTCP)
				f.Endpoint = netipAddrPort(i)
				r, o := w.Create(f)
				if o != Created {
					b.Fatal(o)
				}
				w.Delete(r)
				if i++; i&63 == 0 {
					w.Quiesce()
				}
			}
		})
	}
}

// What a round pays when nothing is due, and what it costs to look and to delete.
func BenchmarkAge(b *testing.B) {
	const n = 1 << 20
	b.Run("nothing due", func(b *testing.B) {
		tab, _ := filled(b, 1<<16)
		w := tab.Worker(0)
		w.Online()
		ageAll(tab, w, 1)
		for b.Loop() {
			w.Age(1)
		}
	})
	b.Run("look", func(b *testing.B) {
		tab, _ := filled(b, n)
		w := tab.Worker(0)
		w.Online()
		for b.Loop() {
			ageAll(tab, w, 1)
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/flow")
	})
	b.Run("delete", func(b *testing.B) {
		steps := 0
		for b.Loop() {
			b.StopTimer()
			tab, _ := filled(b, n)
			w := tab.Worker(0)
			w.Online()
			tab.progress.at.Store(uint64(1<<22-sweepTicks) << 32)
			w.chunk.made = w.count.created.Load()
			b.StartTimer()
			for w.Age(1 << 22) {
				w.Quiesce()
				steps++
			}
			if tab.Flows() != 0 {
				b.Fatal("flows are left")
			}
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/flow")
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(steps), "ns/step")
	})
}

// A SYN of a group whose ports are all held by established connections costs no more than a
// SYN of a group with fresh ports. Nor does a SYN that takes over the port of a flow that
// nobody completed. 100,000 arrive per second.
func BenchmarkSYNWhenPortsRunShort(b *testing.B) {
	const ports, perTick = 4536, 100_000 / TicksPerSecond
	for _, c := range []struct {
		name         string
		held, answer bool
		want         Outcome
	}{{"accepted", false, false, Created}, {"taken over", true, false, Created}, {"refused", true, true, NoPort}} {
		b.Run(c.name, func(b *testing.B) {
			tab := openTest(b, Config{MaxFlows: 1 << 18})
			w := tab.Worker(0)
			w.Online()
			for i := range ports {
				if !c.held {
					break
				}
				r := mustCreate(b, w, portFlow(i, ports))
				if c.answer {
					tab.TrackTCP(r.Other(), &tcp.Segment{Flags: tcp.FlagSYN | tcp.FlagACK, Ack: 1}, 0)
					tab.TrackTCP(r, &tcp.Segment{Flags: tcp.FlagACK, Seq: 1, Ack: 1}, 0)
				}
			}
			f := portFlow(0, ports)
			b.ResetTimer()
			b.ReportAllocs()
			for i := range b.N {
				f.Client, f.Tick = MakeKey(client(1<<20+i), vip, ProtoTCP), uint32(1000+i/perTick)
				r, o := w.Create(f)
				if o != c.want {
					b.Fatalf("outcome %d, %+v", o, tab.Stats())
				}
				if !c.held {
					w.Delete(r)
				}
				if i%64 == 63 {
					w.Quiesce()
				}
			}
		})
	}
}

// A SYN in a flood, in a table that is full of the flood's.
func BenchmarkCreateInAFlood(b *testing.B) {
	const max = 1 << 20
	tab := openTest(b, Config{MaxFlows: max})
	w := tab.Worker(0)
	w.Online()
	f := natFlow(0)
	f.PortLo = 1024
	mk := func(i int) {
		f.Client, f.Endpoint, f.Tick = MakeKey(client(i), vip, ProtoTCP), netipAddrPort(i), uint32(i/10000)
		if _, o := w.Create(f); o != Created {
			b.Fatal(o)
		}
		if i%64 == 63 {
			w.Quiesce()
		}
	}
	for i := range max {
		mk(i)
	}
	b.ResetTimer()
	for i := range b.N {
		mk(max + i)
	}
}

// BenchmarkRestore is the Open of a table with 10,000 connections, prepared or not.
func BenchmarkRestore(b *testing.B) {
	cfg := Config{Path: filepath.Join(b.TempDir(), "flows"), MaxFlows: 1 << 18, Workers: 2}
	tab := open(b, cfg)
	w := tab.Worker(0)
	w.Online()
	for i := range 10_000 {
		f := natFlow(i)
		f.Endpoint = netipAddrPort(i)
		mustCreate(b, w, f)
	}
	w.Offline()
	for b.Loop() {
		b.StopTimer()
		if err := tab.Close(); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
		tab = open(b, cfg)
	}
	if n := tab.Restoration().Flows; n != 10_000 {
		b.Fatal(n)
	}
}
