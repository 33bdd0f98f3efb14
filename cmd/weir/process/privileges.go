package process

import (
	"cmp"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/cmd/weir/config"
	"github.com/weirlb/weir/cmd/weir/privilege"
	"github.com/weirlb/weir/cmd/weir/problem"
	"github.com/weirlb/weir/lb/steer"
)

// dropAfter is the time after which privileges are given up although no traffic is taken yet.
const dropAfter = 10 * time.Second

// Privileges are those of the process, and what its kernel has.
type Privileges struct {
	status   atomic.Pointer[privilege.Status] // nil until given up
	features atomic.Pointer[[]api.Feature]    // nil until probed
}

// Status are the privileges that are left, nil until the others are given up.
func (p *Privileges) Status() *privilege.Status { return p.status.Load() }

// Features are those of the kernel, nil until they are probed.
func (p *Privileges) Features() []api.Feature {
	if f := p.features.Load(); f != nil {
		return *f
	}
	return nil
}

// Drop leaves the process those that a running Weir needs, when traffic is taken:
// connections wait for that, and each change of the threads would interrupt the verifier,
// which then begins anew. Before it the hooks are probed, and after it the other features.
func (p *Privileges) Drop(ctx context.Context, taken <-chan struct{}, node Node, problems *problem.Registry, log *slog.Logger) error {
	late := time.NewTimer(dropAfter)
	defer late.Stop()
	select {
	case <-ctx.Done():
		return nil
	case <-taken:
	case <-late.C:
	}
	hooks := steer.ProbeHooks()
	cfg := node.Configuration()
	s, err := privilege.Drop(writable(&cfg))
	if err != nil {
		log.Warn("privileges are kept", "err", err)
	}
	p.status.Store(s)
	log.Info("privileges", "capabilities", s.Capabilities, "noNewPrivs", s.NoNewPrivs,
		"seccomp", cmp.Or(s.Seccomp, "in force"), "landlock", cmp.Or(s.Landlock, "in force"))
	p.probeKernel(hooks, problems)
	return nil
}

// writable are the directories in which a running Weir makes, writes or removes files; nil
// for no limit.
func writable(cfg *config.Configuration) []string {
	if k := cfg.Discovery.Kubernetes; k != nil && k.Kubeconfig != "" {
		return nil
	}
	dirs := []string{
		filepath.Dir(cfg.Admin.Socket), // and notes on changed settings
		// The directory of pins comes and goes.
		filepath.Dir(cmp.Or(os.Getenv("WEIR_PIN_DIR"), steer.DefaultPinDir)),
		filepath.Join(cmp.Or(os.Getenv("WEIR_PROC_SYS"), "/proc/sys"), "net"),
	}
	if cfg.Conntrack.Path != "" {
		dirs = append(dirs, filepath.Dir(cfg.Conntrack.Path))
	}
	if cfg.FlowLog.JSONFile != "" {
		// Of a directory that is not there the one above would count.
		if dir := filepath.Dir(cfg.FlowLog.JSONFile); isDirectory(dir) {
			dirs = append(dirs, dir)
		}
	}
	if cfg.StateDir != "" {
		dirs = append(dirs, cfg.StateDir)
	}
	return dirs
}

func isDirectory(name string) bool {
	s, err := os.Stat(name)
	return err == nil && s.IsDir()
}
