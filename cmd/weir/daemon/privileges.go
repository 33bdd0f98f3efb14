package daemon

import (
	"cmp"
	"context"
	"os"
	"path/filepath"
	"time"

	"github.com/weirlb/weir/cmd/weir/config"
	"github.com/weirlb/weir/cmd/weir/privilege"
	"github.com/weirlb/weir/lb/steer"
)

// dropAfter is the time after which privileges are given up although no traffic is taken yet.
const dropAfter = 10 * time.Second

// dropPrivileges leaves the process those that a running Weir needs, when traffic is taken:
// connections wait for that, and each change of the threads would interrupt the verifier,
// which then begins anew. Before it the hooks are probed, and after it the other features.
func (d *Daemon) dropPrivileges(ctx context.Context) error {
	late := time.NewTimer(dropAfter)
	defer late.Stop()
	select {
	case <-ctx.Done():
		return nil
	case <-d.taken:
	case <-late.C:
	}
	hooks := steer.ProbeHooks()
	d.mu.Lock()
	dirs := writable(d.cfg)
	d.mu.Unlock()
	s, err := privilege.Drop(dirs)
	if err != nil {
		d.log.Warn("privileges are kept", "err", err)
	}
	d.privileges.Store(s)
	d.log.Info("privileges", "capabilities", s.Capabilities, "noNewPrivs", s.NoNewPrivs,
		"seccomp", cmp.Or(s.Seccomp, "in force"), "landlock", cmp.Or(s.Landlock, "in force"))
	d.probeKernel(hooks)
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
	if cfg.Discovery.Kubernetes != nil && cfg.StateDir != "" {
		dirs = append(dirs, cfg.StateDir)
	}
	return dirs
}
