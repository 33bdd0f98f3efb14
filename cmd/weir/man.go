package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

func newMan() *cobra.Command {
	return &cobra.Command{
		Use:   "man DIRECTORY",
		Short: "Write the man pages",
		Long: `Writes a man page of section 8 for weir and for each command into a directory, which
is made if it does not exist. Packages have the pages already. SOURCE_DATE_EPOCH in the
environment, in seconds since 1970, sets their date, so that two builds have the same
bytes.`,
		Example: `  weir man /usr/local/share/man/man8
  weir man man && man -l man/weir-connections-kill.8`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return fmt.Errorf("expected a directory")
			}
			return nil
		},
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return nil, cobra.ShellCompDirectiveFilterDirs
		},
		RunE: func(_ *cobra.Command, args []string) error { return writeMan(args[0]) },
	}
}

// writeMan writes the pages of all commands.
func writeMan(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	root := newRoot()
	root.InitDefaultCompletionCmd()
	header := doc.GenManHeader{Section: "8", Source: "Weir", Manual: "Weir"} // GenMan sets the date
	for _, cmd := range append([]*cobra.Command{root}, commands(root)...) {
		if !cmd.IsAvailableCommand() && cmd != root {
			continue
		}
		if err := writePageOf(cmd, header, dir); err != nil {
			return err
		}
	}
	return nil
}

func writePageOf(cmd *cobra.Command, header doc.GenManHeader, dir string) (err error) {
	name := strings.ReplaceAll(cmd.CommandPath(), " ", "-")
	header.Title = strings.ToUpper(name)
	f, err := os.Create(filepath.Join(dir, name+".8"))
	if err != nil {
		return err
	}
	defer func() {
		if e := f.Close(); err == nil {
			err = e
		}
	}()
	return doc.GenMan(cmd, &header, f)
}

// commands are those below a command, each before its own.
func commands(of *cobra.Command) []*cobra.Command {
	var out []*cobra.Command
	for _, c := range of.Commands() {
		out = append(append(out, c), commands(c)...)
	}
	return out
}
