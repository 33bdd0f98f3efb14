package steer

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"testing"

	"github.com/safchain/ethtool"
	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/perf/netlab"
)

func TestProbesAgreeWithTheirKernel(t *testing.T) {
	newWire(t, netlab.LinkConfig{})
	dir := bpffs(t)
	for _, p := range Probes(dir) {
		t.Log(p)
		if p.Name == "" || p.Kernel == "" || p.Without == "" {
			t.Errorf("%+v says too little", p)
		}
		if !p.OK() && kernelAtLeast(t, p.Kernel) {
			t.Errorf("%s, but this kernel should have it", p)
		}
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the probes left %s: %v", dir, err)
	}
	if p := ProbeBPFFS(t.TempDir()); p.OK() {
		t.Error("a temporary directory passes for a BPF file system")
	}
}

// kernelAtLeast compares the running kernel with the version that text begins
// with. Only tests go by versions: they must notice a probe that is wrong.
func kernelAtLeast(t testing.TB, text string) bool {
	t.Helper()
	var u unix.Utsname
	must(t, unix.Uname(&u))
	var have, want [2]int
	_, err := fmt.Sscanf(unix.ByteSliceToString(u.Release[:]), "%d.%d", &have[0], &have[1])
	must(t, err)
	_, err = fmt.Sscanf(text, "%d.%d", &want[0], &want[1])
	must(t, err)
	return slices.Compare(have[:], want[:]) >= 0
}

func TestRxQueuesCountsThoseInUse(t *testing.T) {
	w := newWire(t, netlab.LinkConfig{Queues: 4})
	s := w.openSocket(2)
	q, err := RxQueues(w.dev.Index)
	must(t, err)
	if q.Rx != 4 {
		t.Errorf("%d queues, want 4 (%s)", q.Rx, q.Source)
	}
	if q.Source == "netdev" && kernelAtLeast(t, "6.15") && !slices.Equal(q.Bound, []int{2}) {
		t.Errorf("bound %v, want queue %d", q.Bound, s.Queue())
	}
	if n := rxChannels(w.dev.Name); n != 4 && kernelAtLeast(t, "5.15") { // veth's, before: none
		t.Errorf("ethtool says %d, want 4", n)
	}
	// While it is down the netdev family has nothing to say.
	dev, err := w.node.Interface(w.dev.Name)
	must(t, err)
	must(t, w.node.Netlink().LinkSetDown(dev))
	q, err = RxQueues(w.dev.Index)
	must(t, err)
	if q.Rx != 4 || q.Source == "netdev" {
		t.Errorf("%d queues from %s on an interface that is down", q.Rx, q.Source)
	}
	if _, err := RxQueues(9999); err == nil {
		t.Error("queues of no interface")
	}
}

func TestOffloadsAreSwitchedOffAndPutBack(t *testing.T) {
	w := newWire(t, netlab.LinkConfig{})
	tool, err := ethtool.NewEthtool()
	must(t, err)
	defer tool.Close()
	must(t, tool.Change(w.dev.Name, map[string]bool{"rx-gro": true}))
	before, err := tool.Features(w.dev.Name)
	must(t, err)

	native, err := OffloadConflicts(w.dev.Name, XDP, Native)
	must(t, err)
	generic, err := OffloadConflicts(w.dev.Name, XDP, Generic)
	must(t, err)
	isGRO := func(c Conflict) bool { return c.Feature == "rx-gro" }
	if slices.ContainsFunc(native, isGRO) || !slices.ContainsFunc(generic, isGRO) {
		t.Fatalf("conflicts %v in native mode, %v in generic mode", native, generic)
	}
	for _, c := range generic {
		t.Log(c.Command(w.dev.Name), "as it", c.Why)
	}
	restore, err := DisableOffloads(w.dev.Name, generic)
	must(t, err)
	if left, err := OffloadConflicts(w.dev.Name, XDP, Generic); err != nil || len(left) != 0 {
		t.Errorf("%v, %v left", left, err)
	}
	must(t, RestoreOffloads(w.dev.Name, restore))
	after, err := tool.Features(w.dev.Name)
	must(t, err)
	if !maps.Equal(before, after) {
		t.Errorf("features were %v and are %v", before, after)
	}
}

// LRO makes packets that the kernel itself refuses to forward. GRO's keep what it needs to cut them.
func TestHookTCXExcludesLROAlone(t *testing.T) {
	state := map[string]ethtool.FeatureState{}
	for _, o := range Offloads {
		state[o.Feature] = ethtool.FeatureState{Active: true, Available: true}
	}
	for _, mode := range []Mode{Auto, Native, Generic} {
		if got := conflictsOf(state, TCX, mode); len(got) != 1 || got[0].Feature != "rx-lro" || got[0].Fixed {
			t.Errorf("mode %v: conflicts %v", mode, got)
		}
	}
	if got := conflictsOf(state, XDP, Generic); len(got) != len(Offloads) {
		t.Errorf("hook XDP in generic mode: conflicts %v", got)
	}
}

func TestAnOffloadThatStaysOnIsAnError(t *testing.T) {
	newWire(t, netlab.LinkConfig{})
	tool, err := ethtool.NewEthtool()
	must(t, err)
	defer tool.Close()
	state, err := tool.FeaturesWithState("lo")
	must(t, err)
	for name, f := range state {
		if !f.Active || f.Available {
			continue
		}
		_, err := DisableOffloads("lo", []Conflict{{Offload: Offload{Feature: name, Ethtool: name, Why: "is fixed"}}})
		if err == nil {
			t.Errorf("%s: switched off, though it is fixed", name)
		}
		t.Log(err)
		return
	}
	t.Skip("skipped: the loopback interface has no feature that is on and fixed")
}
