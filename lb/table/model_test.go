package table

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// model is a Table as one would write it without a thought for speed.
type model struct {
	claims map[string]map[string]string // Service -> frontend -> its kind and endpoints
	order  map[string][]string          // frontend -> Services that claim it, in any order
	made   map[string]int64             // Service -> its age
}

// holder is the Service with the best claim: external IPs last, then the oldest, then the first
// by name.
func (m *model) holder(f string, names []string) string {
	return slices.MinFunc(names, func(a, b string) int {
		external := func(n string) int { return strings.Count(m.claims[n][f], "ExternalIP") }
		age := func(n string) int64 { return cmp.Or(m.made[n], math.MaxInt64) }
		return cmp.Or(cmp.Compare(external(a), external(b)), cmp.Compare(age(a), age(b)), cmp.Compare(a, b))
	})
}

// apply is a change: claims that end, then those that are new, in order.
func (m *model) apply(put []string, claims map[string]map[string]string, del []string) {
	for _, name := range append(slices.Clone(put), del...) {
		for f := range m.claims[name] {
			if _, still := claims[name][f]; !still {
				m.order[f] = slices.DeleteFunc(m.order[f], func(n string) bool { return n == name })
			}
		}
		delete(m.claims, name)
	}
	for _, name := range put {
		m.claims[name] = claims[name]
		for f := range claims[name] {
			if !slices.Contains(m.order[f], name) {
				m.order[f] = append(m.order[f], name)
			}
		}
	}
}

// frontends is what clients get: frontend -> Service and its endpoints.
func (m *model) frontends() map[string]string {
	out := make(map[string]string)
	for f, names := range m.order {
		if len(names) > 0 {
			holder := m.holder(f, names)
			out[f] = holder + " " + m.claims[holder][f]
		}
	}
	return out
}

func describe(f *FrontendEntry) string {
	s := f.ServiceName + " " + f.Kind.String() + " "
	for _, e := range f.Pool.Endpoints() {
		s += e.AddrPort.String() + ","
	}
	return s
}

func contents(s *Snapshot) map[string]string {
	out := make(map[string]string)
	for f := range s.All() {
		out[f.AddrPort.String()] = describe(f)
	}
	return out
}

func drawService(t *rapid.T, name string) (Service, map[string]string) {
	s, claims := Service{Name: name}, make(map[string]string)
	for i := range rapid.IntRange(1, 2).Draw(t, "pools") {
		var p Pool
		text := ""
		for e := range rapid.IntRange(0, 3).Draw(t, "endpoints") {
			ap := netip.AddrPortFrom(v4(e), uint16(rapid.IntRange(1, 2).Draw(t, "port")))
			p.Endpoints = append(p.Endpoints, Endpoint{AddrPort: ap})
			text += ap.String() + ","
		}
		s.Pools = append(s.Pools, p)
		for range rapid.IntRange(0, 3).Draw(t, "frontends") {
			f := netip.AddrPortFrom(v4(rapid.IntRange(0, 7).Draw(t, "frontend")), 80)
			if _, twice := claims[f.String()]; !twice {
				kind := rapid.SampledFrom([]Kind{LoadBalancer, ExternalIP}).Draw(t, "kind")
				s.Frontends = append(s.Frontends, Frontend{AddrPort: f, Proto: 6, Kind: kind, Pool: i})
				claims[f.String()] = kind.String() + " " + text
			}
		}
	}
	return s, claims
}

func TestTableIsAsItsModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var c clock
		tb := New(c.config(0))
		m := model{make(map[string]map[string]string), make(map[string][]string), make(map[string]int64)}
		steered := make(map[string]bool) // as the steering program has it
		old := make(map[*Snapshot]map[string]string)
		for range rapid.IntRange(1, 20).Draw(t, "changes") {
			c.now += uint32(rapid.IntRange(0, 2*quarantineTicks).Draw(t, "time"))
			var put []Service
			var order, del []string
			claims, made := make(map[string]map[string]string), maps.Clone(m.made)
			for _, name := range rapid.Permutation([]string{"a", "b", "c", "d"}).Draw(t, "names") {
				switch rapid.IntRange(0, 3).Draw(t, "what") {
				case 0, 1:
					s, cl := drawService(t, name)
					s.Created = made[name]
					if rapid.IntRange(0, 4).Draw(t, "made anew") == 0 {
						s.Created = rapid.Int64Range(0, 3).Draw(t, "created")
					}
					made[name] = s.Created
					put, order, claims[name] = append(put, s), append(order, name), cl
				case 2:
					del = append(del, name)
				}
			}
			if rapid.IntRange(0, 9).Draw(t, "drop") == 0 {
				if _, err := tb.Prepare(put, del); err != nil {
					t.Fatal(err)
				}
				continue
			}
			change, err := tb.Prepare(put, del)
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range change.Removed {
				delete(steered, f.AddrPort.String())
			}
			if err := tb.Publish(change); err != nil {
				t.Fatal(err)
			}
			for _, f := range change.Added {
				steered[f.AddrPort.String()] = true
			}
			m.apply(order, claims, del)
			m.made = made
			checkModel(t, tb, &m, steered)
			checkNumbers(t, tb)
			old[tb.Load()] = contents(tb.Load())
		}
		for s, was := range old {
			if !maps.Equal(contents(s), was) {
				t.Fatalf("snapshot %d changed after its publication", s.Number())
			}
		}
	})
}

func checkModel(t *rapid.T, tb *Table, m *model, steered map[string]bool) {
	got, want := contents(tb.Load()), m.frontends()
	if !maps.Equal(got, want) {
		t.Fatalf("frontends\ngot  %v\nwant %v", got, want)
	}
	if tb.Load().Frontends() != len(want) || tb.Load().Services() != len(m.claims) {
		t.Fatalf("counts: %d frontends, %d services", tb.Load().Frontends(), tb.Load().Services())
	}
	waiting := 0
	for f, names := range m.order {
		e := lookup(tb, f)
		if (e == nil) != (len(names) == 0) {
			t.Fatalf("look-up of %s: %v", f, e)
		}
		if e != nil && (describe(e) != want[f] || tb.ServiceName(e.ServiceID) != e.ServiceName) {
			t.Fatalf("%s is %s, Service %d %q", f, describe(e), e.ServiceID, tb.ServiceName(e.ServiceID))
		}
		if steered[f] != (e != nil) {
			t.Fatalf("%s: steered %v", f, steered[f])
		}
		waiting += max(len(names)-1, 0)
	}
	if n := len(tb.Conflicts()); n != waiting {
		t.Fatalf("%d conflicts, want %d", n, waiting)
	}
}

// checkNumbers says whether every endpoint in use has one number and is not gone, and every other one is.
func checkNumbers(t *rapid.T, tb *Table) {
	present := make(map[uint32]string)
	for f := range tb.Load().All() {
		for i := range f.Pool.Endpoints() {
			e := &f.Pool.Endpoints()[i]
			if was, ok := present[e.ID]; ok && was != e.AddrPort.String() {
				t.Fatalf("number %d is %s and %v", e.ID, was, e.AddrPort)
			}
			present[e.ID] = e.AddrPort.String()
			if ap, _, ok := tb.Endpoint(e.ID); !ok || ap != e.AddrPort {
				t.Fatalf("number %d of %v is %v", e.ID, e.AddrPort, ap)
			}
			if _, gone := tb.EndpointRemoved(e.ID); gone {
				t.Fatalf("%v is gone", e.AddrPort)
			}
		}
	}
	listed := make(map[uint32]bool)
	for _, s := range tb.services {
		for _, n := range s.endpointIDs {
			listed[n] = true
		}
	}
	for n := range uint32(len(tb.endpoints.records)) {
		_, gone := tb.EndpointRemoved(n)
		if _, _, known := tb.Endpoint(n); gone != (known && !listed[n]) {
			t.Fatalf("number %d: gone %v, known %v, listed %v", n, gone, known, listed[n])
		}
	}
	if tb.PresentEndpoints() != len(listed) {
		t.Fatalf("%d present, want %d", tb.PresentEndpoints(), len(listed))
	}
}

// TestTrieIsAsAMap puts and deletes keys whose hashes agree in many bits, so
// that leaves split, grow at the greatest depth and join again.
func TestTrieIsAsAMap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		mask := rapid.SampledFrom([]uint64{0, 1 << 63, 3, 0xfff, 0xfff << 52, ^uint64(0)}).Draw(t, "mask")
		hash := func(k *Key) uint64 { return k.hash() & mask }
		var root *node
		want := make(map[Key]*FrontendEntry)
		for edit := range uint64(rapid.IntRange(1, 8).Draw(t, "edits")) {
			before, wanted := root, maps.Clone(want)
			for range rapid.IntRange(0, 60).Draw(t, "steps") {
				k := Key{W0: uint64(rapid.IntRange(0, 99).Draw(t, "key"))}
				if rapid.Bool().Draw(t, "put") {
					want[k] = &FrontendEntry{Key: k}
					root = root.put(want[k], hash(&k), 0, edit+1)
				} else if want[k] != nil {
					delete(want, k)
					root = root.del(&k, hash(&k), 0, edit+1)
				}
			}
			checkTrie(t, before, wanted, hash)
		}
		checkTrie(t, root, want, hash)
		for k := range want {
			root = root.del(&k, hash(&k), 0, 1000)
		}
		if root != nil {
			t.Fatal("an emptied trie has nodes")
		}
	})
}

func checkTrie(t *rapid.T, root *node, want map[Key]*FrontendEntry, hash func(*Key) uint64) {
	for i := range 100 {
		k := Key{W0: uint64(i)}
		if root.find(&k, hash(&k)) != want[k] {
			t.Fatalf("key %d: %v, want %v", i, root.find(&k, hash(&k)), want[k])
		}
	}
	n := 0
	root.walk(func(*FrontendEntry) bool { n++; return true })
	if n != len(want) {
		t.Fatalf("walk gives %d entries of %d", n, len(want))
	}
}

func TestAllStopsWhenTold(t *testing.T) {
	tb := testTable(t, 200, 1)
	n := 0
	for range tb.Load().All() {
		if n++; n == 100 {
			break
		}
	}
	if n != 100 || tb.Load().Frontends() != 600 {
		t.Error(n, tb.Load().Frontends(), fmt.Sprint(tb.Load().Services()))
	}
}
