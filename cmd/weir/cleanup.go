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
		Short: "Remove what a killed Weir left on this node",
		Long: `Removes pinned XDP programs, the host veth, routes, the nftables table, and puts
changed sysctls and offloads back, as far as a Weir that was killed left them.
A Weir that ends by SIGTERM leaves nothing; a Weir that starts takes over what
it finds. While a Weir is running cleanup refuses.`,
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
