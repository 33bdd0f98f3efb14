package process

import (
	"errors"
	"fmt"
	"log/slog"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/cmd/weir/problem"
	"github.com/weirlb/weir/lb/steer"
	"github.com/weirlb/weir/lb/xsk"
)

func TestKernelFeaturesThatAreMissingAreProblems(t *testing.T) {
	features, problems := kernelFeatures([]xsk.Probe{
		{Name: "a", Kernel: "5.1"},
		{Name: "b", Kernel: "6.8", Without: "goes slower", Err: errors.New("invalid argument")},
		{Name: "c", Err: fmt.Errorf("bind: %w", unix.EBUSY)},
		{Name: "d", Err: unix.EPERM},
	})
	if diff := cmp.Diff([]api.Feature{{Name: "a", Available: true}, {Name: "b", Instead: "goes slower"}}, features); diff != "" {
		t.Errorf("features (-want +got):\n%s", diff)
	}
	want := []problem.Problem{{
		Kind: problem.KernelFeature, Object: problem.Weir, Field: "b",
		Reason: "invalid argument (Linux 6.8 has it): Weir goes slower",
	}}
	if diff := cmp.Diff(want, problems); diff != "" {
		t.Errorf("problems (-want +got):\n%s", diff)
	}
}

// The daemon reports the same features as `weir check`.
func TestDaemonProbesTheKernel(t *testing.T) {
	var p Privileges
	list := problem.NewRegistry(slog.New(slog.DiscardHandler))
	p.probeKernel(steer.ProbeHooks(), list)
	missing := 0
	shown := map[string]bool{}
	for _, f := range p.Features() {
		shown[f.Name] = true
		if !f.Available {
			missing++
		}
	}
	for _, p := range steer.Probes("") {
		if p.OK() && !shown[p.Name] {
			t.Errorf("%s is not shown", p.Name)
		}
	}
	if got := list.Counts()[problem.KernelFeature]; got != missing {
		t.Errorf("%d problems of %d features that are missing", got, missing)
	}
}
