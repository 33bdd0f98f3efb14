package main

import (
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/weirlb/weir/cmd/weir/version"
)

func newVersion() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Show the version",
		Example: `  weir version
  weir version -o json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			v := version.Get()
			switch output {
			case "json":
				enc := json.NewEncoder(cmd.OutOrStdout())
				enc.SetIndent("", "  ")
				return enc.Encode(v)
			case "text":
				_, err := fmt.Fprintln(cmd.OutOrStdout(), v)
				return err
			}
			return badOutput(cmd, output, "text", "json")
		},
	}
	addOutput(cmd, &output, "text", "json")
	return cmd
}
