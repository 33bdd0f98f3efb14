package slicepacker

import (
	"fmt"
	"slices"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"
)

var prototype = &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{
	GenerateName: "web-", Namespace: "default", Labels: map[string]string{discoveryv1.LabelServiceName: "web"},
}}

func ports(number int32) []discoveryv1.EndpointPort {
	name := "http"
	return []discoveryv1.EndpointPort{{Name: &name, Port: &number}}
}

// endpoints are 10.0.0.N for each N; a negative N is the same, not ready.
func endpoints(numbers ...int) []discoveryv1.Endpoint {
	out := make([]discoveryv1.Endpoint, len(numbers))
	for i, n := range numbers {
		ready := n > 0
		out[i] = discoveryv1.Endpoint{
			Addresses:  []string{fmt.Sprintf("10.0.%d.%d", max(n, -n)>>8, max(n, -n)&255)},
			Conditions: discoveryv1.EndpointConditions{Ready: &ready},
		}
	}
	return out
}

func sequence(from, to int) []int {
	var out []int
	for n := from; n <= to; n++ {
		out = append(out, n)
	}
	return out
}

func slice(name string, numbers ...int) *discoveryv1.EndpointSlice {
	s := prototype.DeepCopy()
	s.Name, s.AddressType, s.Ports, s.Endpoints = name, discoveryv1.AddressTypeIPv4, ports(80), endpoints(numbers...)
	return s
}

func group(numbers ...int) []Group {
	return []Group{{discoveryv1.AddressTypeIPv4, ports(80), endpoints(numbers...)}}
}

// describe is the changes in the form "create 2; update b:3; delete c", where
// numbers count endpoints.
func describe(c Changes) string {
	text := ""
	for _, s := range c.Create {
		text += fmt.Sprintf("create %d; ", len(s.Endpoints))
	}
	for _, s := range c.Update {
		text += fmt.Sprintf("update %s:%d; ", s.Name, len(s.Endpoints))
	}
	for _, s := range c.Delete {
		text += fmt.Sprintf("delete %s; ", s.Name)
	}
	return text
}

func TestPack(t *testing.T) {
	type slicesOf = []*discoveryv1.EndpointSlice
	for _, test := range []struct {
		name     string
		existing slicesOf
		desired  []int
		want     string
	}{
		{"nothing at all", nil, nil, ""},
		{"the first endpoints make one slice", nil, sequence(1, 4), "create 4; "},
		{"more than fit make several", nil, sequence(1, 12), "create 5; create 5; create 2; "},
		{"no change is no write", slicesOf{slice("a", 1, 2), slice("b", 3)}, []int{1, 2, 3}, ""},
		{"order does not matter", slicesOf{slice("a", 1, 2), slice("b", 3)}, []int{3, 1, 2}, ""},
		{"another state is one update", slicesOf{slice("a", 1, 2), slice("b", 3)}, []int{1, -2, 3}, "update a:2; "},
		{"a new endpoint goes where a write is due", slicesOf{slice("a", 1, 2), slice("b", 3, 4, 5)}, []int{1, -2, 3, 4, 5, 6}, "update a:3; "},
		{"the fullest of those is filled first", slicesOf{slice("a", 1, 2), slice("b", 3, 4, 5)}, []int{1, -2, 3, -4, 5, 6, 7}, "update a:2; update b:5; "},
		{"else to the fullest slice with room for all", slicesOf{slice("a", 1), slice("b", 3, 4), slice("c", 5, 6, 7, 8)}, []int{1, 3, 4, 5, 6, 7, 8, 9, 10}, "update b:4; "},
		{"rather one new slice than two updates", slicesOf{slice("a", 1, 2, 3), slice("b", 4, 5, 6)}, sequence(1, 9), "create 3; "},
		{"the last endpoint gone deletes the slice", slicesOf{slice("a", 1), slice("b", 2)}, []int{1}, "delete b; "},
		{"a slice to delete is reused for one to create", slicesOf{slice("a", 1), slice("b", 2, 3, 4, 5, 6)}, []int{2, 3, 4, 5, 6, 7, 8}, "update a:2; "},
		{"an endpoint in two slices stays in one", slicesOf{slice("a", 1, 2), slice("b", 2, 3)}, []int{1, 2, 3}, "update b:1; "},
		{"a slice over the limit is cut", slicesOf{slice("a", 1, 2, 3, 4, 5, 6, 7)}, sequence(1, 7), "create 2; update a:5; "},
		{"sparse slices are not rewritten to be full", slicesOf{slice("a", 1), slice("b", 2), slice("c", 3)}, []int{1, 2, 3}, ""},
		{"an empty slice takes what comes", slicesOf{slice("a")}, []int{1}, "update a:1; "},
		{"all gone", slicesOf{slice("a", 1), slice("b", 2)}, nil, "delete a; delete b; "},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := Pack(prototype, test.existing, group(test.desired...), Options{MaxPerSlice: 5})
			if describe(got) != test.want {
				t.Errorf("got %q, want %q", describe(got), test.want)
			}
		})
	}
}

func TestPackReusesNamesAcrossPortsButNotFamilies(t *testing.T) {
	old := slice("a", 1, 2)
	v6 := slice("v6")
	v6.AddressType, v6.Endpoints = discoveryv1.AddressTypeIPv6, []discoveryv1.Endpoint{{Addresses: []string{"fd00::1"}}}
	got := Pack(prototype, []*discoveryv1.EndpointSlice{v6, old}, []Group{{discoveryv1.AddressTypeIPv4, ports(8080), endpoints(1, 2)}}, Options{})
	if describe(got) != "update a:2; delete v6; " {
		t.Fatal(describe(got))
	}
	if n := *got.Update[0].Ports[0].Port; n != 8080 {
		t.Errorf("port %d", n)
	}
	if *old.Ports[0].Port != 80 {
		t.Error("what was given has been written to")
	}
}

func TestPackUpdatesSlicesThatLackALabel(t *testing.T) {
	s := slice("a", 1)
	s.Labels = map[string]string{"kept": "yes"}
	got := Pack(prototype, []*discoveryv1.EndpointSlice{s}, group(1), Options{})
	if describe(got) != "update a:1; " || got.Update[0].Labels["kept"] != "yes" || !hasLabels(got.Update[0], prototype) {
		t.Fatal(describe(got), got.Update)
	}
}

// apply is the API server: it carries out the changes and names what is new.
func apply(existing []*discoveryv1.EndpointSlice, c Changes, serial *int) []*discoveryv1.EndpointSlice {
	byName := map[string]*discoveryv1.EndpointSlice{}
	for _, s := range existing {
		byName[s.Name] = s
	}
	for _, s := range c.Delete {
		if byName[s.Name] == nil {
			panic("deleted what is not there")
		}
		delete(byName, s.Name)
	}
	for _, s := range c.Update {
		if byName[s.Name] == nil {
			panic("updated what is not there")
		}
		byName[s.Name] = s
	}
	for _, s := range c.Create {
		*serial++
		s.Name = fmt.Sprintf("s%d", *serial)
		byName[s.Name] = s
	}
	out := make([]*discoveryv1.EndpointSlice, 0, len(byName))
	for _, s := range byName {
		out = append(out, s)
	}
	slices.SortFunc(out, func(a, b *discoveryv1.EndpointSlice) int { return len(a.Name) - len(b.Name) })
	return out
}

// rewriteWrites is what the obvious way costs: the slices of each group are
// filled up in turn and all written, those too many deleted.
func rewriteWrites(existing []*discoveryv1.EndpointSlice, groups []Group, most int) int {
	have, want := map[string]int{}, map[string]int{}
	for _, s := range existing {
		have[groupKey(s.AddressType, s.Ports)]++
	}
	writes := 0
	for _, g := range groups {
		k := groupKey(g.AddressType, g.Ports)
		want[k] = (len(g.Endpoints) + most - 1) / most
		writes += max(have[k], want[k])
	}
	for k, n := range have {
		if _, wanted := want[k]; !wanted {
			writes += n
		}
	}
	return writes
}

// TestPackProperties drives a Service through random desired states. After
// each, every desired endpoint is in exactly one slice of its ports and
// family in its desired state, no slice is too full, no more was written
// than by rewriting all, and doing the same again writes nothing.
func TestPackProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var slicesNow []*discoveryv1.EndpointSlice
		serial := 0
		for range rapid.IntRange(1, 12).Draw(t, "steps") {
			most := rapid.SampledFrom([]int{1, 3, 4, 10}).Draw(t, "most")
			groups := drawGroups(t)
			opts := Options{MaxPerSlice: most}
			before := deepCopies(slicesNow)
			c := Pack(prototype, slicesNow, groups, opts)
			if limit := rewriteWrites(slicesNow, groups, most); c.Writes() > limit {
				t.Fatalf("%d writes, rewriting takes %d", c.Writes(), limit)
			}
			if fmt.Sprint(before) != fmt.Sprint(deepCopies(slicesNow)) {
				t.Fatal("what was given has been written to")
			}
			slicesNow = apply(slicesNow, c, &serial)
			check(t, slicesNow, groups, most)
			if again := Pack(prototype, slicesNow, groups, opts); again.Writes() != 0 {
				t.Fatalf("not stable: %s", describe(again))
			}
		}
	})
}

func drawGroups(t *rapid.T) []Group {
	var groups []Group
	for _, port := range []int32{80, 81} {
		numbers := rapid.SliceOfNDistinct(rapid.IntRange(1, 40), 0, 40, rapid.ID[int]).Draw(t, "endpoints")
		for i := range numbers {
			if rapid.IntRange(0, 4).Draw(t, "not ready") == 0 {
				numbers[i] = -numbers[i]
			}
		}
		groups = append(groups, Group{discoveryv1.AddressTypeIPv4, ports(port), endpoints(numbers...)})
	}
	v6 := Group{AddressType: discoveryv1.AddressTypeIPv6, Ports: ports(80)}
	for i := range rapid.IntRange(0, 9).Draw(t, "v6") {
		v6.Endpoints = append(v6.Endpoints, discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("fd00::%x", i+1)}})
	}
	return append(groups, v6)
}

func deepCopies(in []*discoveryv1.EndpointSlice) []string {
	var out []string
	for _, s := range in {
		out = append(out, s.String())
	}
	return out
}

// check compares what is in the slices with what is desired.
func check(t *rapid.T, have []*discoveryv1.EndpointSlice, groups []Group, most int) {
	count := map[string]int{}
	for _, g := range groups {
		for _, e := range g.Endpoints {
			count[groupKey(g.AddressType, g.Ports)+e.String()]++
		}
	}
	for _, s := range have {
		if len(s.Endpoints) > most || len(s.Endpoints) == 0 {
			t.Fatalf("%d endpoints in slice %s of at most %d", len(s.Endpoints), s.Name, most)
		}
		for _, e := range s.Endpoints {
			count[groupKey(s.AddressType, s.Ports)+e.String()]--
		}
	}
	for what, n := range count {
		if n != 0 {
			t.Fatalf("%d too few of %s", n, what)
		}
	}
}

func BenchmarkPackOneChangeOf5000(b *testing.B) {
	numbers := sequence(1, 5000)
	var existing []*discoveryv1.EndpointSlice
	for i := 0; i < 5000; i += 100 {
		existing = append(existing, slice(fmt.Sprintf("s%d", i), numbers[i:i+100]...))
	}
	numbers[2500] = -numbers[2500]
	groups := group(numbers...)
	b.ReportAllocs()
	for b.Loop() {
		if c := Pack(prototype, existing, groups, Options{}); c.Writes() != 1 {
			b.Fatal(describe(c))
		}
	}
}
