package controlplane

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/weirlb/weir/cmd/weirperf/machine"
)

func TestClusterHasTheSizesAskedFor(t *testing.T) {
	for _, c := range []struct{ services, endpoints int }{{10000, 250000}, {1000, 25000}, {100, 2000}, {1, 1}, {1, 5000}, {7, 7}} {
		k := newCluster(c.services, c.endpoints)
		if len(k.sizes) != c.services || k.total != c.endpoints {
			t.Errorf("%+v: %d Services, %d endpoints", c, len(k.sizes), k.total)
		}
		n := 0
		for i := range k.sizes {
			for j := range k.sliceCount(i) {
				if c.endpoints <= 25000 {
					n += len(k.sliceObject(i, j, 0).Endpoints)
				}
			}
		}
		if c.endpoints <= 25000 && n != c.endpoints {
			t.Errorf("%+v: slices hold %d endpoints", c, n)
		}
	}
	k := newCluster(10000, 250000)
	if k.sizes[0] != giantSize || k.sizes[1] != largeSize || k.sizes[largeCount+1] != middleSize {
		t.Errorf("sizes begin %v", k.sizes[:largeCount+2])
	}
}

// The figures must be those of what Weir really serves.
func TestPlaneServesWhatTheSlicesSay(t *testing.T) {
	c := newCluster(50, 2000)
	p := newPlane()
	if _, err := p.build(c); err != nil {
		t.Fatal(err)
	}
	if got := p.table.PresentEndpoints(); got != c.total {
		t.Errorf("%d endpoints, want %d", got, c.total)
	}
	before := p.table.Load().Number()
	s, err := p.changes(context.Background(), c, 300, c.anySlice())
	if err != nil {
		t.Fatal(err)
	}
	if len(s.wall) != 300 || p.table.Load().Number() != before+300 {
		t.Errorf("%d changes, %d publications", len(s.wall), p.table.Load().Number()-before)
	}
	if got := p.table.PresentEndpoints(); got != c.total {
		t.Errorf("%d endpoints after the changes, want %d", got, c.total)
	}
}

func TestCommandPrintsTheContract(t *testing.T) {
	cmd := Command()
	var out strings.Builder
	cmd.SetOut(&out)
	cmd.SetErr(io.Discard)
	cmd.SetArgs([]string{"--services", "1000", "--endpoints", "6000", "--changes", "50", "--economy=false", "--json"})
	if err := cmd.ExecuteContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal([]byte(out.String()), &got); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"services", "endpoints", "buildSeconds", "changeP50us", "changeP99us", "changeAllocBytes", "heapBytesPerEndpoint"} {
		if v, ok := got[key].(float64); !ok || v <= 0 {
			t.Errorf("%s is %v", key, got[key])
		}
	}
	for _, args := range [][]string{{"--services", "0"}, {"--endpoints", "5"}, {"--changes", "0"}} {
		cmd := Command()
		cmd.SetArgs(args)
		cmd.SetOut(io.Discard)
		cmd.SetErr(io.Discard)
		if err := cmd.Execute(); err == nil {
			t.Errorf("%q: no error", args)
		}
	}
}

func TestEconomyIsThatOfTheProposal(t *testing.T) {
	e, err := economy(1000, nodes)
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range e.Encodings {
		// Ten slices: a change sends a tenth or so of what Endpoints sends.
		if r := k.EndpointsChange / k.SlicesChange; r < 5 || r > 15 {
			t.Errorf("%s: %.1f times less", k.Encoding, r)
		}
		if k.SliceWrites != 1000 {
			t.Errorf("%s: %d writes for 1000 endpoints replaced", k.Encoding, k.SliceWrites)
		}
	}
	res := Result{Economy: &e}
	var b strings.Builder
	if err := res.render(&b, machine.Describe()); err != nil || !strings.Contains(b.String(), "watched by 3000 nodes") {
		t.Errorf("%v: %s", err, b.String())
	}
}

// BenchmarkChange is one endpoint replaced, from the slice event to the
// published snapshot.
func BenchmarkChange(b *testing.B) {
	c := newCluster(1000, 25000)
	p := newPlane()
	if _, err := p.build(c); err != nil {
		b.Fatal(err)
	}
	for _, size := range []int{middleSize, largeSize, giantSize} {
		pick := c.ofSize(size)
		if pick == nil {
			continue
		}
		b.Run(fmt.Sprintf("endpoints=%d", size), func(b *testing.B) {
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				b.StopTimer()
				slice := p.next(c, pick(i))
				b.StartTimer()
				if _, err := p.change(slice); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
