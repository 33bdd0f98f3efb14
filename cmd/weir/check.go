package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/weirlb/weir/cmd/weir/config"
)

func newCheck() *cobra.Command {
	var flags *config.Flags
	cmd := &cobra.Command{
		Use:   "check [flags]",
		Short: "Say all that stands in the way of `weir run`",
		Long: `Says everything that is wrong with a configuration and with this machine, at
once: fields, interfaces, privileges, locked memory, manifests, kernel features.
Takes the flags of weir run. Nothing is changed.

Exit status 0 when weir run would start, 1 when something is wrong.`,
		Example: `  weir check --config /etc/weir/weir.yaml
  weir check --node-name edge-1 --manifests /etc/weir/manifests --interface eth0`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return runCheck(cmd, flags)
		},
	}
	flags = config.AddFlags(cmd.Flags())
	cmd.Flags().SortFlags = false
	return cmd
}

func runCheck(cmd *cobra.Command, flags *config.Flags) error {
	var errs []error
	cfg, err := flags.Load()
	if err != nil {
		errs = append(errs, err)
	} else {
		errs = append(errs, cfg.Validate().Err(), cfg.CheckHost(config.SystemHost()).Err())
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	fmt.Fprintln(cmd.OutOrStdout(), "all is well")
	return nil
}
