package process

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/cmd/weir/problem"
	"github.com/weirlb/weir/lb/steer"
	"github.com/weirlb/weir/lb/xsk"
)

// partKernel is the part of the problems of missing features.
const partKernel = "kernel"

// probeKernel probes the kernel features that Weir uses, but for the hooks, which are probed.
// One run is enough: features do not change while the kernel runs.
func (p *Privileges) probeKernel(hooks steer.HookProbes, list *problem.Registry) {
	features, problems := kernelFeatures(steer.ProbesBeside(hooks, os.Getenv("WEIR_PIN_DIR")))
	p.features.Store(&features)
	list.Replace(partKernel, problems...)
}

// kernelFeatures converts probes to the features of a status, and missing
// features to problems. A probe that could not run yields neither: it lacked a
// privilege, or another process held the resource.
func kernelFeatures(probes []xsk.Probe) (features []api.Feature, problems []problem.Problem) {
	for _, p := range probes {
		if errors.Is(p.Err, fs.ErrPermission) || errors.Is(p.Err, unix.EBUSY) {
			continue
		}

		f := api.Feature{Name: p.Name, Available: p.OK()}
		if !f.Available {
			f.Instead = p.Without
			problems = append(problems, problem.Problem{
				Kind: problem.KernelFeature, Object: problem.Weir, Field: p.Name,
				Reason: fmt.Sprintf("%v (Linux %s has it): Weir %s", p.Err, p.Kernel, p.Without),
			})
		}
		features = append(features, f)
	}
	return features, problems
}
