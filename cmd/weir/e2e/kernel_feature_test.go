package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/cmd/weir/problem"
	"github.com/weirlb/weir/lb/steer"
)

// A running Weir reports each kernel feature in its status, as a metric, and, if
// the feature is missing, as a problem. A pin directory outside of the BPF file
// system stands for a kernel that lacks a feature.
func TestWireKernelFeaturesAreReported(t *testing.T) {
	const pins = "BPF file system"
	for name, env := range map[string][]string{
		"as the kernel has them":    nil,
		"without a BPF file system": {"WEIR_PIN_DIR=" + t.TempDir()},
	} {
		t.Run(name, func(t *testing.T) {
			available := map[string]bool{}
			for _, p := range steer.Probes("") {
				available[p.Name] = p.OK()
			}
			available[pins] = env == nil // netlab mounts it for every command

			f := ownFixture(t, options{
				services: []service{toAttached}, env: env, extra: "metricsBindAddress: 127.0.0.1:9464",
			})
			f.awaitFeatures(t, available)

			metrics := f.metrics(t)
			for name, is := range available {
				line := fmt.Sprintf("weir_kernel_feature{feature=%q} %d\n", name, map[bool]int{true: 1}[is])
				if !strings.Contains(metrics, line) {
					t.Errorf("metrics have no %s", line)
				}
			}

			text, err := f.command("status", "--admin-socket", f.path("weir.sock")).CombinedOutput()
			if err != nil {
				t.Fatal(err)
			}
			if got := featureLine(string(text)); strings.Contains(got, pins) == available[pins] {
				t.Errorf("weir status: %q; %s available: %v", got, pins, available[pins])
			}
		})
	}
}

// awaitFeatures waits until the status has these features, and a problem for
// each feature that is not available.
func (f *fixture) awaitFeatures(t *testing.T, available map[string]bool) {
	t.Helper()
	err := f.poll(func(ctx context.Context) error {
		s, err := f.admin.Status(ctx)
		if err != nil {
			return err
		}
		if len(s.Kernel) != len(available) {
			return fmt.Errorf("features are %+v, want %v", s.Kernel, available)
		}
		for _, k := range s.Kernel {
			if want, ok := available[k.Name]; !ok || k.Available != want || k.Available != (k.Instead == "") {
				return fmt.Errorf("feature is %+v, want available: %v", k, want)
			}
			if hasFeatureProblem(s, k.Name) == k.Available {
				return fmt.Errorf("%s: available %v, problems %v", k.Name, k.Available, s.Problems)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func hasFeatureProblem(s *api.Status, feature string) bool {
	return slices.ContainsFunc(s.Problems, func(p problem.Problem) bool {
		return p.Kind == problem.KernelFeature && p.Field == feature
	})
}

// featureLine is the line of `weir status` about the kernel.
func featureLine(text string) string {
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "Kernel ") {
			return line
		}
	}
	return ""
}
