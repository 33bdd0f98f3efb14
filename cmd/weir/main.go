// Weir is a userspace layer-4 load balancer for bare-metal edge nodes. See
// README.md of the repository, and `weir --help`.
package main

//go:generate go test -run ^TestReferenceIsCurrent$ -update .

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/weirlb/weir/cmd/weir/controller"
	"github.com/weirlb/weir/cmd/weir/decap"
	"github.com/weirlb/weir/cmd/weir/doctor"
	"github.com/weirlb/weir/cmd/weir/explain"
	"github.com/weirlb/weir/cmd/weir/version"
	"github.com/weirlb/weir/cmd/weir/view"
)

// Exit statuses.
const (
	exitOK     = 0
	exitFailed = 1 // it went wrong
	exitUsage  = 2 // it was called wrongly
)

func main() {
	// The daemon handles signals itself: see newRun.
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run is the whole program, for tests too.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := newRoot()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	entered := false
	onEnter(root, func() { entered = true })
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return exitOK
	}
	if !entered { // flags or arguments were wrong
		err = &usageError{cmd.CommandPath(), err}
	}
	printError(stderr, err)
	return exitCode(err)
}

// onEnter calls f when a command begins the work, after flags and arguments were checked.
func onEnter(cmd *cobra.Command, f func()) {
	if work := cmd.RunE; work != nil {
		cmd.RunE = func(c *cobra.Command, args []string) error {
			f()
			return work(c, args)
		}
	}
	for _, sub := range cmd.Commands() {
		onEnter(sub, f)
	}
}

// printError writes a line per error.
func printError(w io.Writer, err error) {
	if _, quiet := errors.AsType[silent](err); quiet {
		return
	}
	for line := range strings.SplitSeq(strings.TrimRight(err.Error(), "\n"), "\n") {
		fmt.Fprintf(w, "weir: %s\n", view.Line(line))
	}
	if u, ok := errors.AsType[*usageError](err); ok && u.command != "" {
		fmt.Fprintf(w, "weir: see `%s --help`\n", u.command)
	}
}

// usageError means that Weir was called wrongly.
type usageError struct {
	command string
	err     error
}

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

// ExitCode is 2.
func (e *usageError) ExitCode() int { return exitUsage }

// silent is an exit status whose reason has already been shown.
type silent int

func (s silent) Error() string { return fmt.Sprintf("exit status %d", int(s)) }

// ExitCode is the status.
func (s silent) ExitCode() int { return int(s) }

// exitCode is the status that err asks for by a method ExitCode, else 1.
func exitCode(err error) int {
	var coder interface{ ExitCode() int }
	if errors.As(err, &coder) {
		return coder.ExitCode()
	}
	return exitFailed
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "weir",
		Short: "A userspace layer-4 load balancer for bare-metal edge nodes",
		Long: `Weir is a layer-4 load balancer for Kubernetes edge nodes. It serves NodePort and
LoadBalancer traffic in userspace over AF_XDP, and chooses endpoints by topology,
as each Service asks: same node, same zone, anywhere.

Exit status: 0 success, 1 failure, 2 wrong usage.`,
		SilenceErrors:     true,
		SilenceUsage:      true,
		DisableAutoGenTag: true,
		Args:              cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return unknownCommand(cmd, args[0])
			}
			_ = cmd.Help()
			return &usageError{err: errors.New("no command was given")}
		},
	}
	root.CompletionOptions.HiddenDefaultCmd = false
	root.Version = version.Get().String()
	root.SetVersionTemplate("{{.Version}}\n")
	root.Flags().Bool("version", false, "show the version") // without the letter v, which other programs use for more output
	for _, g := range []struct {
		id, title string
		commands  []*cobra.Command
	}{
		{"run", "Run:", []*cobra.Command{newRun(), newCheck(), newStop(), newCleanup(), controller.Command(), decap.Command()}},
		{"look", "Look:", []*cobra.Command{newStatus(), newTop(), newServices(), newEndpoints(), newConnections(), newEvents(), doctor.Command(), explain.Command()}},
		{"packets", "Packets:", []*cobra.Command{newDrops(), newTrace(), newCapture()}},
		{"change", "Change:", []*cobra.Command{newDrain(), newLogLevel(), newProfile()}},
		{"other", "Other:", []*cobra.Command{newVersion(), newMan()}},
	} {
		root.AddGroup(&cobra.Group{ID: g.id, Title: g.title})
		for _, c := range g.commands {
			c.GroupID = g.id
		}
		root.AddCommand(g.commands...)
	}
	root.SetHelpCommandGroupID("other")
	root.SetCompletionCommandGroupID("other")
	return root
}

func unknownCommand(cmd *cobra.Command, name string) error {
	msg := fmt.Sprintf("unknown command %q", name)
	cmd.SuggestionsMinimumDistance = 2
	if s := cmd.SuggestionsFor(name); len(s) > 0 {
		msg += fmt.Sprintf(" (did you mean %s?)", strings.Join(s, " or "))
	}
	return &usageError{cmd.CommandPath(), errors.New(msg)}
}
