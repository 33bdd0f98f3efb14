package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/weirlb/weir/cmd/weir/api"
)

func newLogLevel() *cobra.Command {
	var socket, output string
	cmd := &cobra.Command{
		Use:   "log-level [LEVEL]",
		Short: "Show or change the level of the log",
		Long: `Shows the level of the running Weir's log, and changes it first if a level is given:
debug, info, warn or error. The change holds until the configuration's level
changes, or until the process ends.`,
		Example: `  weir log-level
  weir log-level debug`,
		Args: atMostOne("level"), ValidArgsFunction: cobra.FixedCompletions(api.LogLevels, cobra.ShellCompDirectiveNoFileComp),
		RunE: func(cmd *cobra.Command, args []string) error {
			json, err := asJSON(cmd, output)
			if err != nil {
				return err
			}
			if l := first(args); l != "" && !slices.Contains(api.LogLevels, l) {
				return &usageError{cmd.CommandPath(), fmt.Errorf("level must be %s, is %q", strings.Join(api.LogLevels, ", "), l)}
			}
			l, err := api.NewClient(socket).LogLevel(cmd.Context(), first(args))
			switch {
			case err != nil:
				return err
			case json:
				return printJSON(cmd.OutOrStdout(), l)
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), l.Level)
			return err
		},
	}
	addSocket(cmd, &socket)
	addOutput(cmd, &output, "table", "json")
	return cmd
}

func newProfile() *cobra.Command {
	var (
		socket, file string
		length       time.Duration
	)
	cmd := &cobra.Command{
		Use:   "profile KIND [flags]",
		Short: "Take a profile of the running Weir, for go tool pprof",
		Long: `Takes a profile of the running Weir through the admin socket, in the format of
pprof: cpu, heap, allocs, goroutine, mutex, block or threadcreate. It needs neither
enableProfiling nor a restart.`,
		Example: `  weir profile cpu --duration 10s -w cpu.pprof && go tool pprof -top cpu.pprof
  weir profile heap -w - > heap.pprof`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 || !slices.Contains(api.Profiles, args[0]) {
				return fmt.Errorf("expected a kind of profile: %s", strings.Join(api.Profiles, ", "))
			}
			return nil
		},
		ValidArgsFunction: cobra.FixedCompletions(api.Profiles, cobra.ShellCompDirectiveNoFileComp),
		RunE: func(cmd *cobra.Command, args []string) error {
			if length < time.Second || length > api.MaxProfile {
				return &usageError{cmd.CommandPath(), fmt.Errorf("--duration: must be from 1s to %v, is %v", api.MaxProfile, length)}
			}
			return profile(cmd, api.NewClient(socket), args[0], length, file)
		},
	}
	addSocket(cmd, &socket)
	cmd.Flags().DurationVar(&length, "duration", 10*time.Second, "`time` that a profile of the CPU takes")
	cmd.Flags().StringVarP(&file, "write", "w", "", "`file` to write, - for standard output; default: KIND.pprof")
	return cmd
}

// isTerminal reports whether w is a terminal, to which nobody wants binary data written.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// profile writes a profile to a file, which comes into being whole or not at all.
func profile(cmd *cobra.Command, c *api.Client, kind string, length time.Duration, file string) error {
	if file == "-" {
		if isTerminal(cmd.OutOrStdout()) {
			return &usageError{cmd.CommandPath(), errors.New("--write -: standard output is a terminal")}
		}
		return c.Profile(cmd.Context(), cmd.OutOrStdout(), kind, length)
	}
	if file == "" {
		file = kind + ".pprof"
	}
	var b bytes.Buffer
	if err := c.Profile(cmd.Context(), io.Writer(&b), kind, length); err != nil {
		return err
	}
	if err := os.WriteFile(file, b.Bytes(), 0o600); err != nil {
		return err
	}
	_, err := fmt.Fprintln(cmd.ErrOrStderr(), "written:", file)
	return err
}
