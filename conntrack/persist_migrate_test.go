package conntrack

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/weirlb/weir/conntrack/conntracktest"
	"github.com/weirlb/weir/conntrack/flowstate"
	"github.com/weirlb/weir/conntrack/schema"
)

// optional are the fields that a layout may lack.
var optional = []string{
	"header.Shape.Seed", "header.Shape.ConnSize", "cursors.At",
	"conns.EndpointID", "conns.ServiceID",
	"entries.NewPorts", "entries.AddrDelta", "entries.L4Delta", "entries.gen",
}

func rewritten(t testing.TB, table []byte, l conntracktest.Layout) []byte {
	t.Helper()
	b, err := conntracktest.Rewrite(table, l)
	if err != nil {
		t.Fatal(err)
	}
	aligned := pages(int64(len(b)))
	copy(aligned, b)
	return aligned
}

// varied is a table with connections of every mode, family and state.
func varied(t *testing.T, rng *rand.Rand, cfg Config) []byte {
	t.Helper()
	cfg.Memory = &heapMemory{}
	tab := open(t, cfg)
	w := tab.Worker(0)
	w.Online()
	tab.baseTick = 100_000
	for i := range cfg.MaxFlows * 3 / 4 {
		var f *NewFlow
		switch i % 8 {
		case 0, 1:
			f = natFlow(i)
		case 2:
			f = natFlow6(i)
		case 3:
			f = natFlow6(i)
			f.Mode = ModeDNAT
		case 4:
			f = natFlow(i)
			f.Mode = ModeDNAT
		default:
			f = dsrFlow(ModeL2DSR+Mode(i%3), i%16 < 8, i%32 < 16)
		}
		f.Client.W[4] = f.Client.W[4]&^0xffff | uint64(i+1)
		f.Established, f.Tick, f.Watched = true, tab.Tick(), i%5 == 0
		r, outcome := w.Create(f)
		if outcome != Created {
			t.Fatalf("flow %d: outcome %d", i, outcome)
		}
		c := tab.Conn(r)
		named := uint32(0)
		for _, b := range stateBits() {
			named |= uint32(b.Mask)
		}
		c.state = flowstate.Published | rng.Uint32()&named&^(flowstate.Mask|flowstate.Superseded|flowstate.Changing) | 1 + rng.Uint32()%uint32(flowstate.Count-1)
		c.clientNext, c.endpointNext, c.extra = rng.Uint32(), rng.Uint32(), rng.Uint32()
		c.created, c.lastSeen = tab.Tick()-rng.Uint32()%1000, tab.Tick()-rng.Uint32()%1000
		tab.entries[2*r.Conn()].seen = tab.Tick() - rng.Uint32()%1000
	}
	for i := range tab.ports.cursors {
		tab.ports.cursors[i].at.Store(rng.Uint32())
	}
	w.Offline()
	tab.head.note(tab.Tick(), time.Now())
	return bytes.Clone(unsafe.Slice((*byte)(unsafe.Pointer(tab.head)), planFor(int64(cfg.MaxFlows)).size))
}

// restoredFrom is what a process makes of a table that another has left.
func restoredFrom(t *testing.T, cfg Config, last []byte) (map[Key]string, Restoration) {
	t.Helper()
	cfg.Memory = &heapMemory{last: last}
	tab := open(t, cfg)
	defer tab.Close()
	checkTable(t, tab)
	out := map[Key]string{}
	tab.Range(func(r Ref) bool {
		c := *tab.Changing(r)
		recipe := fmt.Sprintf("%v to %v: %+v", tab.NewSrc(r), tab.NewDst(r), &c)
		for _, e := range [2]Entry{*tab.Entry(r), *tab.Entry(r.Other())} {
			// The next-hop words are of the process, as is the generation.
			switch {
			case e.Key.Family() == 4:
				e.Key.W[1] = 0
			case !e.Mode.DSR() || e.Flags&FlagOuter6 != 0:
				e.Addr4 = 0
			}
			e.gen = 0
			recipe += fmt.Sprintf(" %+v", e)
		}
		out[tab.Entry(r).Tuple()] = recipe
		return true
	})
	checkFree(t, tab)
	return out, tab.Restoration()
}

// A process makes the same of a table in its own layout and in any other.
func TestConnectionsPassFromLayoutToLayout(t *testing.T) {
	rng := rand.New(rand.NewPCG(4, 4))
	for seed := range uint64(40) {
		cfg := Config{MaxFlows: 64 + int(seed), Workers: 1, MaxEndpoints: 64, NextHops: 5}
		last := varied(t, rng, cfg)
		want, _ := restoredFrom(t, cfg, alignedCopy(last))
		l := conntracktest.Layout{Version: layoutVersion + 1 - 2*uint32(seed%2), Seed: seed}
		for _, field := range optional {
			if seed > 0 && rng.IntN(3) == 0 {
				l.Without = append(l.Without, field)
			}
		}
		for _, size := range []int{cfg.MaxFlows, cfg.MaxFlows + 100} {
			cfg.MaxFlows = size
			got, a := restoredFrom(t, cfg, rewritten(t, last, l))
			if a.Migrated != int(l.Version) || a.Discarded != 0 || a.Flows == 0 {
				t.Fatalf("seed %d: %+v", seed, a)
			}
			if !maps.Equal(got, want) {
				for k := range want {
					if got[k] != want[k] {
						t.Fatalf("seed %d, without %v: connection is\n%s, want\n%s", seed, l.Without, got[k], want[k])
					}
				}
				t.Fatalf("%d connections, want %d", len(got), len(want))
			}
		}
	}
}

func alignedCopy(b []byte) []byte {
	out := pages(int64(len(b)))
	copy(out, b)
	return out
}

// setNumber changes a number of record i of a part.
func setNumber(t *testing.T, table []byte, part, field string, i int64, v func(uint64) uint64) {
	t.Helper()
	s, err := schema.Read(table, int64(len(table)))
	if err != nil {
		t.Fatal(err)
	}
	p := s.Part(part)
	n, ok := p.Number(field, 0)
	if !ok {
		t.Fatalf("no %s.%s", part, field)
	}
	record := p.Record(p.Records(table), i)
	n.Store(record, v(n.Load(record)))
}

// What this process does not know is left out, with its cause, and nothing else.
func TestAConnectionThatIsUnknownHereIsLeftOut(t *testing.T) {
	cfg := Config{MaxFlows: 64, Workers: 1, MaxEndpoints: 64}
	good := varied(t, rand.New(rand.NewPCG(5, 5)), cfg)
	want, _ := restoredFrom(t, cfg, alignedCopy(good))
	layout := conntracktest.Layout{Version: layoutVersion + 1, Seed: 5}
	for name, c := range map[string]struct {
		part, field string
		record      int64 // of connection 3
		to          func(uint64, *schema.Schema) uint64
		want        DiscardCause
	}{
		"state": {partConns, "state", 3, func(v uint64, s *schema.Schema) uint64 {
			mask := s.Part(partConns).Mask("state", "number")
			n, _ := s.ValueOf("state", "of-another-release")
			return v&^mask | n*(mask&-mask)
		}, UnknownState},
		"mode": {partEntries, "Mode", 6, func(_ uint64, s *schema.Schema) uint64 {
			n, _ := s.ValueOf("mode", "of-another-release")
			return n
		}, UnknownMode},
		"number": {partConns, "clientNext", 3, func(v uint64, _ *schema.Schema) uint64 { return v | 1<<32 }, NumberTooLarge},
		"ports":  {partEntries, "NewPorts", 7, func(v uint64, _ *schema.Schema) uint64 { return v | 1<<63 }, NumberTooLarge},
		"recipe": {partEntries, "NewPorts", 6, func(v uint64, _ *schema.Schema) uint64 { return v ^ 1 }, Damaged},
		"tuple":  {partEntries, "Key.W", 6, func(v uint64, _ *schema.Schema) uint64 { return v ^ 1 }, Damaged},
		"family": {partEntries, "Key.W", 6, func(v uint64, _ *schema.Schema) uint64 { return v ^ 1 }, Damaged},
	} {
		t.Run(name, func(t *testing.T) {
			b := rewritten(t, good, layout)
			s, err := schema.Read(b, int64(len(b)))
			if err != nil {
				t.Fatal(err)
			}
			setNumber(t, b, c.part, c.field, c.record, func(v uint64) uint64 { return c.to(v, s) })
			got, a := restoredFrom(t, cfg, b)
			if len(got) >= len(want) || a.Discarded != 1 || a.DiscardedBy[c.want] != 1 {
				t.Errorf("%d of %d entries, %+v", len(got), len(want), a)
			}
		})
	}
}

// A table whose schema cannot be used is set aside, as one without.
func TestATableWithAnUnreadableSchemaIsSetAside(t *testing.T) {
	resum := func(b []byte, change func(text string) string) {
		s, err := schema.Read(b, int64(len(b)))
		if err == nil {
			err = schema.WriteText(b, change(s.String()))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	own, other := fmt.Sprint("version ", layoutVersion+1), fmt.Sprint("version ", layoutVersion+2)
	for name, c := range map[string]struct {
		spoil  func(b []byte)
		reason string
	}{
		"checksum":   {func(b []byte) { b[schema.BlockOffset+100]++ }, "checksum"},
		"length":     {func(b []byte) { b[schema.BlockOffset+10]++ }, "damaged"},
		"none":       {func(b []byte) { clear(b[schema.BlockOffset:schema.BlockEnd]) }, "no schema"},
		"no tuple":   {func(b []byte) { resum(b, drop("field Key.W")) }, "lacks number 0 of entries.Key.W"},
		"no states":  {func(b []byte) { resum(b, drop("bits state number")) }, "lacks the bits"},
		"no conns":   {func(b []byte) { resum(b, drop("part conns")) }, "damaged"},
		"no entries": {func(b []byte) { resum(b, substitute("part entries", "part others")) }, "lacks a part"},
		"ticks":      {func(b []byte) { resum(b, substitute("ticks-per-second 16", "ticks-per-second 17")) }, "ticks"},
		"of another": {func(b []byte) { resum(b, substitute(own, other)) }, "of " + other},
		"header":     {func(b []byte) { b[40]++ }, "damaged"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := fileConfig(t)
			fillAndClose(t, cfg, 3)
			b, err := os.ReadFile(cfg.Path)
			if err != nil {
				t.Fatal(err)
			}
			b = rewritten(t, b, conntracktest.Layout{Version: layoutVersion + 1, Seed: 9})
			c.spoil(b)
			if err := os.WriteFile(cfg.Path, b, 0o600); err != nil {
				t.Fatal(err)
			}
			tab := open(t, cfg)
			defer tab.Close()
			a := tab.Restoration()
			if a.Restored || a.SetAside != cfg.Path+".bad" || !strings.Contains(a.Reason, c.reason) {
				t.Errorf("restoration %+v", a)
			}
		})
	}
}

func drop(line string) func(string) string {
	return func(text string) (out string) {
		for l := range strings.Lines(text) {
			if !strings.HasPrefix(l, line) {
				out += l
			}
		}
		return out
	}
}

func substitute(from, to string) func(string) string {
	return func(text string) string { return strings.Replace(text, from, to, 1) }
}

// leave has the last process leave a table of another layout.
func leave(t *testing.T, cfg Config, b []byte) {
	t.Helper()
	m, ok := cfg.Memory.(*mapMemory)
	if !ok {
		if err := os.WriteFile(cfg.Path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	was := *m
	table, err := m.Table(int64(len(b)))
	if err != nil {
		t.Fatal(err)
	}
	copy(table, b)
	was.made, was.tableSize = m.made, m.tableSize
	*m = was
	if err := m.Keep(); err != nil {
		t.Fatal(err)
	}
}

// A process that ends at any point of a migration leaves the table of the last one as it was, or
// its own with all connections.
func TestAMigrationThatIsKilledBeginsAgain(t *testing.T) {
	const connections = 20_000
	memories(t, func(t *testing.T, cfg Config) {
		m, _ := cfg.Memory.(*mapMemory)
		cfg.MaxFlows = connections
		want := fillAndClose(t, cfg, connections/2)
		left := bytes.Clone(leftBy(t, cfg))
		other := rewritten(t, left, conntracktest.Layout{Version: layoutVersion + 1, Seed: 7})
		rng, again := rand.New(rand.NewPCG(3, 3)), 0
		for range *kills {
			leave(t, cfg, other)
			cmd := exec.Command(os.Args[0])
			cmd.Env = append(os.Environ(), killedProcess+"="+cfg.Path, fmt.Sprint(killedFlows, "=", connections))
			if m != nil {
				cmd.Env = append(cmd.Env, fmt.Sprint(killedMapSize, "=", m.lastSize))
				cmd.ExtraFiles = []*os.File{m.kept}
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Duration(rng.IntN(150_000)) * time.Microsecond) // any instant will do
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
			now := leftBy(t, cfg)
			if examineMemory(now).version != layoutVersion {
				again++
				if !bytes.Equal(now, other) {
					t.Fatal("the table of the last process was changed")
				}
			}
			tab := open(t, cfg)
			if a := tab.Restoration(); a.Flows != len(want) || a.Discarded != 0 || a.MemoryErr != nil {
				t.Fatalf("restoration %+v of %d", a, len(want))
			}
			checkSurvived(t, tab, want)
			tab.Close()
		}
		t.Logf("%d of %d begin again", again, *kills)
	})
}

// Nothing of the last table changes when the new one cannot be kept.
func TestAMigrationThatFailsChangesNothing(t *testing.T) {
	cfg := fileConfig(t)
	m := newMapMemory(t)
	cfg.Memory = m
	want := fillAndClose(t, cfg, 100)
	other := rewritten(t, leftBy(t, cfg), conntracktest.Layout{Version: layoutVersion - 1, Seed: 2})
	leave(t, cfg, other)
	last := m.Last()
	m.keepErr = errors.New("no pin")
	tab := open(t, cfg)
	defer tab.Close()
	if a := tab.Restoration(); a.MemoryErr == nil || a.Migrated != layoutVersion-1 {
		t.Errorf("restoration %+v", a)
	}
	if !bytes.Equal(other, last) {
		t.Error("the last table was changed")
	}
	checkSurvived(t, tab, want) // in the file
}

// BenchmarkMigrate copies a million connections from a table of another layout, and restores
// them.
func BenchmarkMigrate(b *testing.B) {
	const n = 1 << 20
	m := &heapMemory{}
	cfg := Config{MaxFlows: n * 5 / 4, Workers: 1, Memory: m} // or it evicts
	tab := open(b, cfg)
	w := tab.Worker(0)
	w.Online()
	f := natFlow(0)
	for i := range n {
		f.Client, f.Endpoint = MakeKey(client(i), vip, ProtoTCP), netipAddrPort(i)
		mustCreate(b, w, f)
	}
	w.Offline()
	own := unsafe.Slice((*byte)(unsafe.Pointer(tab.head)), planFor(int64(cfg.MaxFlows)).size)
	for name, last := range map[string][]byte{
		"own layout": own, "other layout": rewritten(b, own, conntracktest.Layout{Version: layoutVersion + 1, Seed: 1}),
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				m.last = last
				tab := open(b, cfg)
				if a := tab.Restoration(); a.Flows != n || a.Discarded != 0 {
					b.Fatalf("restoration %+v", a)
				}
				tab.Close()
			}
		})
	}
}
