package main

import (
	"github.com/spf13/cobra"

	"github.com/weirlb/weir/cmd/weir/config"
	"github.com/weirlb/weir/cmd/weir/daemon"
)

func newCleanup() *cobra.Command {
	var flags *config.Flags
	cmd := &cobra.Command{
		Use:   "cleanup [flags]",
		Short: "Remove leftovers of a killed Weir from this node",
		Long: `Removes pinned XDP programs, the host veth, routes (those of announce.kernelTable
too) and the nftables table, and restores changed sysctls and offloads, after Weir was
killed. A Weir that ends by SIGTERM leaves nothing, and a new Weir adopts all leftovers.

It removes those of the network namespace that it runs in, and pins of namespaces that
are gone. While Weir is running there, cleanup fails.`,
		Example: `  weir cleanup
  weir cleanup --config /etc/weir/weir.yaml`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := flags.Load()
			if err != nil {
				return err
			}
			log, _ := cfg.Logging.Logger(cmd.ErrOrStderr())
			return daemon.Cleanup(cmd.Context(), cfg, log)
		},
	}
	flags = config.AddFlags(cmd.Flags())
	cmd.Flags().SortFlags = false
	return cmd
}
