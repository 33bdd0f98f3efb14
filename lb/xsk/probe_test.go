package xsk_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/lb/xsk"
	"github.com/weirlb/weir/perf/netlab"
)

func TestDeviceQueuesSayWhichAreBound(t *testing.T) {
	w := newWire(t, netlab.LinkConfig{Queues: 3})
	w.open(xsk.Config{Queue: 1})
	queues, err := xsk.DeviceQueues(w.dev.Index)
	if errors.Is(err, xsk.ErrNoNetdevFamily) {
		t.Skip("skipped: ", err)
	}
	must(t, err)
	tells := kernelAtLeast(t, "6.15") // of sockets
	want := []xsk.Queue{{ID: 0}, {ID: 1, Bound: tells}, {ID: 2}}
	if !slices.Equal(queues, want) {
		t.Errorf("queues %v, want %v", queues, want)
	}
}

func TestDeviceFeaturesOfAVeth(t *testing.T) {
	w := newWire(t, netlab.LinkConfig{})
	f, err := xsk.DeviceFeatures(w.dev.Index)
	if errors.Is(err, xsk.ErrNoNetdevFamily) {
		t.Skip("skipped: ", err)
	}
	must(t, err)
	if !f.Native() || !f.MultiBuffer() || f.ZeroCopy() || f.TxChecksum() {
		t.Errorf("features %+v", f)
	}
	if _, err := xsk.DeviceFeatures(9999); !errors.Is(err, unix.ENODEV) {
		t.Errorf("features of no interface: %v", err)
	}
}

func TestProbesAgreeWithTheirKernel(t *testing.T) {
	newWire(t, netlab.LinkConfig{})
	for _, p := range []xsk.Probe{
		xsk.ProbeSocket(), xsk.ProbeTxMetadata(), xsk.ProbeMultiBuffer(), xsk.ProbeNetdevFeatures(),
		xsk.ProbeBoundRings(),
	} {
		t.Log(p)
		if p.Name == "" || p.Kernel == "" || p.Without == "" {
			t.Errorf("%+v says too little", p)
		}
		if !p.OK() && kernelAtLeast(t, p.Kernel) {
			t.Errorf("%s, but this kernel should have it", p)
		}
		if p.OK() && !kernelAtLeast(t, p.Kernel) {
			t.Errorf("%s, but this kernel should not have it", p)
		}
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
