package daemon

import (
	"cmp"
	"os"
	"path/filepath"

	"github.com/weirlb/weir/cmd/weir/config"
	"github.com/weirlb/weir/cmd/weir/privilege"
	"github.com/weirlb/weir/lb/steer"
)

// dropPrivileges leaves the process those that a running Weir needs. It is called when
// sockets and the packet memory are open, before a goroutine waits in the kernel.
func (d *Daemon) dropPrivileges() {
	s, err := privilege.Drop(writable(d.cfg))
	if err != nil {
		d.log.Warn("privileges are kept", "err", err)
	}
	d.privileges = s
	d.log.Info("privileges", "capabilities", s.Capabilities, "noNewPrivs", s.NoNewPrivs,
		"seccomp", cmp.Or(s.Seccomp, "in force"), "landlock", cmp.Or(s.Landlock, "in force"))
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
