package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// addOutput adds -o/--output, the first of formats being the default.
func addOutput(cmd *cobra.Command, output *string, formats ...string) {
	cmd.Flags().StringVarP(output, "output", "o", formats[0], "`format` of the output: "+strings.Join(formats, " or "))
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(formats, cobra.ShellCompDirectiveNoFileComp))
}

func badOutput(cmd *cobra.Command, got string, formats ...string) error {
	return &usageError{cmd.CommandPath(), fmt.Errorf("--output: must be %s, is %q", strings.Join(formats, " or "), got)}
}

// noArgs is cobra.NoArgs in words that fit a command without subcommands.
func noArgs(_ *cobra.Command, args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("unexpected argument %q", args[0])
	}
	return nil
}
