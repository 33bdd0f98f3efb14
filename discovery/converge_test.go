package discovery

//lint:file-ignore SA1019 Endpoints are deprecated, and served as long as people write them.

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"pgregory.net/rapid"

	"github.com/weirlb/weir/topology"
)

// A tape is a source of choices: bytes, zeros after its end.
type tape struct{ bytes []byte }

func (t *tape) n(limit int) int {
	if len(t.bytes) == 0 {
		return 0
	}
	b := t.bytes[0]
	t.bytes = t.bytes[1:]
	return int(b) % limit
}

func (t *tape) of(choices ...string) string { return choices[t.n(len(choices))] }

// world is the objects as an API server would hold them, by kind and name.
type world map[string]any

// step changes one object of the world, tells the store, and says what it
// did.
func (w world) step(tp *tape, s *Store) string {
	id := tp.of("a/s", "a/s", "a/t", "b/s")
	node := tp.of("n1", "n2", "n3")
	switch tp.n(20) {
	case 0, 1, 2, 3:
		return w.set(s, "service "+id, drawService(tp, id))
	case 4, 5, 6, 7, 8, 9, 10:
		id := tp.of("a/", "a/", "b/") + tp.of("x1", "x2", "x3", "x4", "x5")
		return w.set(s, "slice "+id, drawSlice(tp, id))
	case 11, 12:
		return w.set(s, "endpoints "+id, drawLegacy(tp, id))
	case 13, 14, 15:
		return w.set(s, "node "+node, drawNode(tp, node))
	case 16:
		return w.remove(s, "service "+id)
	case 17:
		return w.remove(s, "slice "+tp.of("a/", "b/")+tp.of("x1", "x2", "x3", "x4", "x5"))
	case 18:
		return w.remove(s, "endpoints "+id)
	}
	return w.remove(s, "node "+node)
}

func (w world) set(s *Store, key string, object any) string {
	w[key] = object
	feed(s, object)
	return "set " + key
}

func (w world) remove(s *Store, key string) string {
	delete(w, key)
	kind, id, _ := strings.Cut(key, " ")
	ns, name := split(id)
	switch kind {
	case "service":
		s.DeleteService(ns, name)
	case "slice":
		s.DeleteSlice(ns, name)
	case "endpoints":
		s.DeleteEndpoints(ns, name)
	case "node":
		s.DeleteNode(id)
	}
	return "delete " + key
}

func drawService(tp *tape, id string) *corev1.Service {
	svc := aService(id, [][]string{{"http:80"}, {"http:80"}, {"http:80", "dns:53/UDP"}, {":80"}}[tp.n(4)]...)
	if tp.n(3) > 0 {
		svc = selectorless(svc)
	}
	switch tp.n(14) {
	case 1:
		svc.Spec.ExternalTrafficPolicy = "Local"
	case 2:
		svc.Annotations[AnnotationTopologyKeys] = "rack,*"
	case 3:
		svc.Labels[labelServiceProxyName] = "other"
	case 4:
		svc.Spec.ClusterIP = "None"
	case 5:
		svc.Spec.ExternalIPs = []string{"192.0.2.1", "127.0.0.1"}
	case 6:
		svc.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv6Protocol}
	case 7:
		svc.Spec.ClusterIP = "10.96.0.1"
	}
	return svc
}

func drawSlice(tp *tape, id string) *discoveryv1.EndpointSlice {
	endpoints := ""
	six := tp.n(6) == 0
	for range tp.n(7) {
		a := tp.of("10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4", "127.0.0.1", "odd")
		if six {
			a = tp.of("fd00::1", "fd00::2", "fd00::3", "::1")
		}
		endpoints += a + tp.of("", " node=n1", " node=n2", " node=n3", " node=gone", " rack=k7 "+host+"=n2") +
			tp.of("", " zone=za", " zone=zb") + tp.of("", " hints=za", " hints=za,zb nodehints=n1") +
			tp.of("", " ready=false", " ready=false terminating=true", " ready=false serving=false terminating=true", " terminating=true") + "\n"
	}
	s := aSlice(id, tp.of("s", "s", "s", "t", "t", ""), tp.of("http:8080", "http:8080", "http:8080", "http:8081 dns:53/UDP", "-:8080", "http:0 dns:53"), endpoints)
	if six {
		s.AddressType = discoveryv1.AddressTypeIPv6
	}
	if tp.n(12) == 11 {
		s.AddressType = discoveryv1.AddressTypeFQDN
	}
	return s
}

func drawLegacy(tp *tape, id string) *corev1.Endpoints {
	var subsets []string
	for range 1 + tp.n(3) {
		text := tp.of("http:8080", "http:8080", "http:8080 dns:53/UDP", "http:9090", ":8080", "")
		for range tp.n(4) {
			text += " " + tp.of("", "!") + tp.of("10.0.0.1", "10.0.0.2", "10.0.0.5", "fd00::1", "odd") + tp.of("", "@n1", "@n2")
		}
		subsets = append(subsets, text)
	}
	ep := someEndpoints(id, subsets...)
	switch tp.n(8) {
	case 6:
		ep.Annotations = map[string]string{annotationLeader: "x"}
	case 7:
		ep.Labels = map[string]string{discoveryv1.LabelSkipMirror: "true"}
	}
	return ep
}

func drawNode(tp *tape, name string) *corev1.Node {
	return aNode(name, tp.of("x=y", "x=y", host+"="+name), tp.of(zone+"=za", zone+"=za", zone+"=zb", "x=y"), tp.of("rack=k1", "rack=k1", "rack=k2"),
		tp.of("InternalIP=10.0.0.1", "InternalIP=10.0.0.2", "ExternalIP=10.0.0.3", "Hostname=10.0.0.4"),
		tp.of("InternalIP=fd00::1", "ExternalIP=10.0.0.5", "InternalIP=127.0.0.1"))
}

// sameServices compares all that a consumer sees.
func sameServices(a, b []*Service) string {
	return cmp.Diff(a, b, cmpopts.EquateComparable(netip.Addr{}, netip.AddrPort{}, netip.Prefix{}), cmpopts.EquateEmpty())
}

// game is a store, the world that it is told of, and a consumer of its
// updates.
type game struct {
	store    *Store
	world    world
	consumer map[ServiceName]*Service
}

// play drives a game from a tape, with flushes at any time, holds now and
// then what must be true, and that nothing is left once all objects are gone.
func play(bytes []byte) error {
	tp := &tape{bytes}
	g := game{NewStore(Options{NodeName: "n1"}), world{}, map[ServiceName]*Service{}}
	for range 300 {
		if len(tp.bytes) == 0 {
			break
		}
		g.world.step(tp, g.store)
		switch tp.n(16) {
		case 1, 2, 3:
			g.flush()
		case 4:
			g.flush()
			if err := g.check(); err != nil {
				return err
			}
		}
	}
	g.flush()
	if err := g.check(); err != nil {
		return err
	}
	for key := range maps.Clone(g.world) {
		g.world.remove(g.store, key)
	}
	g.flush()
	s := g.store
	if s.Stats() != (Stats{}) || len(s.services)+len(s.slices)+len(s.nodes.byName)+len(s.nodes.byAddr)+len(s.skipReasons)+len(g.consumer) != 0 {
		return fmt.Errorf("left behind: %+v %v %v %v %v %v", s.Stats(), s.services, s.slices, s.nodes.byName, s.nodes.byAddr, s.skipReasons)
	}
	return nil
}

func (g *game) flush() {
	up := g.store.Flush()
	if up == nil {
		return
	}
	for _, svc := range up.Put {
		g.consumer[svc.Name] = svc
	}
	for _, name := range up.Deleted {
		delete(g.consumer, name)
	}
}

// check holds that the updates add up to what the store has, that a store
// which is loaded with the world as it is now has the same, and that the
// endpoints are those of the model.
func (g *game) check() error {
	s := g.store
	all := s.All()
	told := slices.SortedFunc(maps.Values(g.consumer), func(a, b *Service) int { return a.Name.compare(b.Name) })
	if diff := sameServices(all, told); diff != "" {
		return fmt.Errorf("the updates do not add up: %s", diff)
	}
	fresh := NewStore(Options{NodeName: "n1"})
	for _, key := range slices.Sorted(maps.Keys(g.world)) {
		feed(fresh, g.world[key])
	}
	fresh.Flush()
	if diff := sameServices(fresh.All(), all); diff != "" {
		return fmt.Errorf("differs from a fresh load: %s", diff)
	}
	if s.self != nil && !maps.Equal(s.self.Labels, fresh.self.Labels) || !slices.Equal(s.Notes(), fresh.Notes()) || s.Stats() != fresh.Stats() {
		return fmt.Errorf("node %v and %v, notes %v and %v, stats %+v and %+v",
			s.self, fresh.self, s.Notes(), fresh.Notes(), s.Stats(), fresh.Stats())
	}
	return g.world.model(all)
}

// model computes the Services and their endpoints from the world in the
// plainest way.
func (w world) model(all []*Service) error {
	byName := map[ServiceName]*Service{}
	for _, svc := range all {
		byName[svc.Name] = svc
	}
	for _, object := range w {
		obj, ok := object.(*corev1.Service)
		if !ok || obj.Labels[labelServiceProxyName] != "" {
			continue
		}
		name := ServiceName{obj.Namespace, obj.Name}
		svc := byName[name]
		if svc == nil {
			return fmt.Errorf("%s is missing", name)
		}
		delete(byName, name)
		for i, p := range obj.Spec.Ports {
			want := map[string]int{}
			if obj.Spec.ClusterIP != "None" {
				want = w.modelPort(obj, p.Name, string(p.Protocol))
			}
			maps.DeleteFunc(want, func(e string, _ int) bool {
				only6 := len(obj.Spec.IPFamilies) > 0 // see drawService
				only4 := obj.Spec.ClusterIP != "" && obj.Spec.ClusterIP != "None"
				six := netip.MustParseAddrPort(e).Addr().Is6()
				return six && only4 || !six && only6
			})
			got := map[string]int{}
			for _, e := range svc.Ports[i].Endpoints {
				got[e.AddrPort.String()] = rankOf(e.Ready, e.Serving, e.Terminating)
			}
			if !maps.Equal(got, want) || len(got) != len(svc.Ports[i].Endpoints) {
				return fmt.Errorf("%s %s: got %v, want %v", name, p.Name, svc.Ports[i].Endpoints, want)
			}
			sorted := slices.IsSortedFunc(svc.Ports[i].Endpoints, func(a, b topology.Endpoint) int { return a.AddrPort.Compare(b.AddrPort) })
			if !sorted {
				return fmt.Errorf("%s %s is not sorted", name, p.Name)
			}
		}
	}
	if len(byName) > 0 {
		return fmt.Errorf("too much: %v", byName)
	}
	return nil
}

func rankOf(ready, serving, terminating bool) int {
	switch {
	case ready && !terminating:
		return 3
	case !terminating:
		return 2
	case ready || serving:
		return 1
	}
	return 0
}

// modelPort is the best rank of each endpoint of a port.
func (w world) modelPort(obj *corev1.Service, port, protocol string) map[string]int {
	best := map[string]int{}
	sliced := false
	for _, object := range w {
		s, ok := object.(*discoveryv1.EndpointSlice)
		if !ok || s.Namespace != obj.Namespace || s.Labels[discoveryv1.LabelServiceName] != obj.Name {
			continue
		}
		sliced = true
		for _, p := range s.Ports {
			has := ""
			if p.Protocol != nil {
				has = string(*p.Protocol)
			}
			named := p.Name != nil && *p.Name == port || p.Name == nil && port == ""
			if !named || has != protocol || *p.Port == 0 || s.AddressType == "FQDN" {
				continue
			}
			for _, e := range s.Endpoints {
				a, err := netip.ParseAddr(e.Addresses[0])
				if err != nil || a.IsLoopback() || a.Is6() != (s.AddressType == "IPv6") {
					continue
				}
				r := rankOf(e.Conditions.Ready == nil || *e.Conditions.Ready, e.Conditions.Serving == nil || *e.Conditions.Serving,
					e.Conditions.Terminating != nil && *e.Conditions.Terminating)
				key := netip.AddrPortFrom(a, uint16(*p.Port)).String()
				if old, found := best[key]; !found || r > old {
					best[key] = r
				}
			}
		}
	}
	ep, ok := w["endpoints "+obj.Namespace+"/"+obj.Name].(*corev1.Endpoints)
	if sliced || !ok || len(obj.Spec.Selector) > 0 || ep.Annotations != nil || ep.Labels != nil {
		return best
	}
	for _, sub := range ep.Subsets {
		for _, p := range sub.Ports {
			if p.Name != port || string(p.Protocol) != protocol {
				continue
			}
			for rank, list := range map[int][]corev1.EndpointAddress{3: sub.Addresses, 2: sub.NotReadyAddresses} {
				for _, a := range list {
					addr, err := netip.ParseAddr(a.IP)
					if err != nil {
						continue
					}
					key := netip.AddrPortFrom(addr, uint16(p.Port)).String()
					if old, found := best[key]; !found || rank < old {
						best[key] = rank
					}
				}
			}
		}
	}
	return best
}

// TestStoreConverges: whatever happens in whatever order, what counts is what
// is there.
func TestStoreConverges(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		// Drawn bytes alone would be too few for a long history.
		random := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		bytes := make([]byte, rapid.SampledFrom([]int{20, 100, 400, 1500, 5000}).Draw(t, "length"))
		for i := range bytes {
			bytes[i] = byte(random.Uint32())
		}
		if err := play(bytes); err != nil {
			t.Fatal(err)
		}
	})
}

// FuzzStoreMerge is the same with tapes that the fuzzer finds.
func FuzzStoreMerge(f *testing.F) {
	f.Fuzz(func(t *testing.T, bytes []byte) {
		if err := play(bytes); err != nil {
			t.Fatal(err)
		}
	})
}
