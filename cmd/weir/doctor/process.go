package doctor

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/pflag"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/cmd/weir/config"
	"github.com/weirlb/weir/cmd/weir/hostcheck"
)

// ofProcess loads the configuration of the running Weir, by the flags of its process. Where
// these cannot be read, as from another PID namespace, the interfaces are those of the status.
func ofProcess(s *api.Status) (*config.Configuration, error) {
	dir := fmt.Sprintf("/proc/%d", s.PID)
	if args := hostcheck.CommandLine(s.PID); args != nil {
		fs := pflag.NewFlagSet("weir run", pflag.ContinueOnError)
		fs.ParseErrorsAllowlist.UnknownFlags = true // weir run has others, too
		flags := config.AddFlags(fs)
		if err := fs.Parse(args[2:]); err != nil {
			return nil, fmt.Errorf("flags of process %d: %w", s.PID, err)
		}
		if flags.File != "" && !filepath.IsAbs(flags.File) {
			if cwd, err := os.Readlink(filepath.Join(dir, "cwd")); err == nil {
				flags.File = filepath.Join(cwd, flags.File)
			}
		}
		cfg, err := flags.Load()
		if err == nil {
			cfg.NodeName = s.Node // also from the environment of the process
		}
		return cfg, err
	}
	return ofStatus(s), nil
}

// ofStatus is a configuration with the interfaces of the running Weir.
func ofStatus(s *api.Status) *config.Configuration {
	cfg := config.Default()
	cfg.NodeName = s.Node
	cfg.Discovery.Manifests = &config.Manifests{}
	for _, name := range attachedNames(s) {
		in := config.Interface{Name: name, Mode: config.ModeAuto, TxChecksum: config.TxChecksumAuto, Hook: config.HookAuto}
		for _, i := range s.Interfaces {
			if i.Interface == name && i.Hook != "" {
				in.Hook = i.Hook
			}
		}
		cfg.Interfaces = append(cfg.Interfaces, in)
	}
	return cfg
}
