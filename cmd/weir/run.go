package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/weirlb/weir/cmd/weir/config"
	"github.com/weirlb/weir/cmd/weir/daemon"
	"github.com/weirlb/weir/cmd/weir/hostcheck"
	"github.com/weirlb/weir/cmd/weir/process"
	"github.com/weirlb/weir/deploy"
)

func newRun() *cobra.Command {
	var (
		flags   *config.Flags
		writeTo string
		watch   bool
	)
	cmd := &cobra.Command{
		Use:   "run [flags]",
		Short: "Run the load balancer in the foreground",
		Long: `Attaches to the interfaces, watches Services and EndpointSlices, and forwards
packets until it is stopped. Only packets to a frontend and the answers to them
reach Weir; all other packets of the interfaces stay with the kernel.

Flags override the configuration file. SIGHUP reads the file again. SIGTERM
drains: the health endpoints fail at once, new connections are served for
drain.notReadySeconds, then established connections continue for up to
drain.timeoutSeconds. A second SIGTERM, or SIGINT at any time, ends at once. Both
remove everything and cut the remaining connections.

SIGUSR2, and SIGTERM with onStop: leave, end Weir for a restart: everything stays in
place, and connections wait up to death.holdSeconds for the next process, as they do
when Weir is killed. After that the kernel has all packets. With onStop: auto the API
server is asked: SIGTERM is a restart while the DaemonSet runs another Pod on the node.

`,
		Example: `  weir run --config /etc/weir/weir.yaml
  weir run --node-name edge-1 --manifests /etc/weir/manifests --interface eth0,eth1
  weir run -c weir.yaml --set logging.level=debug --set interfaces[0].mode=native
  weir run --write-config-to -                                      # a file with all defaults
  weir run -i eth0 --manifests m.yaml --write-config-to weir.yaml   # flags as a file`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			signals := process.Notify() // first: a SIGHUP that comes during the start must not end it
			defer signals.Stop()
			sockets, errSockets := process.LastSockets()
			var watched *process.FileWatch
			if watch {
				if flags.File == "" {
					return errors.New("--watch-config needs --config")
				}
				watched = process.WatchFile(flags.File)
			}
			cfg, again, err := load(flags)
			if err != nil {
				return err
			}
			if writeTo != "" {
				return writeConfig(cfg, writeTo, cmd.OutOrStdout())
			}
			if err := ready(cfg); err != nil {
				return err
			}
			log, level := cfg.Logging.Logger(cmd.ErrOrStderr())
			if errSockets != nil {
				log.Warn(errSockets.Error())
			}
			for _, s := range cfg.Selections() {
				log.Info("interfaces are selected", "entry", s.Path, "by", s.By, "interfaces", s.Names)
			}
			// The signals that end other commands are the daemon's here: SIGTERM drains.
			return daemon.Run(context.WithoutCancel(cmd.Context()), cfg, daemon.Options{
				Log: log, Level: level, Signals: signals, Watch: watched, Sockets: sockets, Again: again,
			})
		},
	}
	flags = config.AddFlags(cmd.Flags())
	cmd.Flags().BoolVar(&watch, "watch-config", false, "read the configuration file again when it changes, as on SIGHUP")
	cmd.Flags().StringVar(&writeTo, "write-config-to", "", "write the configuration of file and flags to this `file` (- for standard output) and exit")
	cmd.Flags().SortFlags = false
	return cmd
}

// load is the configuration of file and flags. A process that was executed again has the
// configuration from before: the file may be that of the next process, which has failed.
func load(flags *config.Flags) (cfg *config.Configuration, again bool, err error) {
	data, again, err := process.Before()
	switch {
	case err != nil:
		return nil, again, err
	case data != nil:
		cfg, err = flags.Resume(data)
	default:
		cfg, err = flags.Load()
	}
	return cfg, again, err
}

// ready says all that keeps cfg from being run here.
func ready(cfg *config.Configuration) error {
	errs := append(cfg.Validate(), cfg.CheckHost(config.SystemHost())...).Unwrap()
	if err := hostcheck.Privileges(); err != nil {
		errs = append(errs, fmt.Errorf("privileges: %w", err))
	}
	return errors.Join(errs...)
}

// writeConfig writes the configuration as a file with comments, if it is valid.
func writeConfig(cfg *config.Configuration, name string, stdout io.Writer) error {
	data, err := config.MarshalLike(cfg, deploy.Sample)
	if err != nil {
		return err
	}
	if name == "-" {
		_, err = stdout.Write(data)
	} else {
		err = os.WriteFile(name, data, 0o644)
	}
	if err != nil {
		return fmt.Errorf("write configuration: %w", err)
	}
	return nil
}
