// Package results makes a readable report of the JSON that the other commands have
// printed. It is the command `weirperf report`.
package results

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/weirlb/weir/cmd/weirperf/machine"
	"github.com/weirlb/weir/perf/report"
)

// Command is `weirperf report`.
func Command() *cobra.Command {
	var how string
	cmd := &cobra.Command{
		Use:   "report DIR",
		Short: "Make a report with charts of results in a directory",
		Long: `Reads pipeline.json, table.json, stall.json and forward.json in DIR, which are
what the commands of these names print with --json, and writes report.md and SVG
charts beside them. What is not there is left out.`,
		Example: "  weirperf report perf/results",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return write(args[0], how)
		},
	}
	cmd.Flags().StringVar(&how, "command", "make bench", "`command` that made the results, for the report")
	return cmd
}

// page is a report that is being written.
type page struct {
	strings.Builder
	dir string
}

func (p *page) line(format string, args ...any) { fmt.Fprintf(p, format+"\n", args...) }

// chart writes a chart beside the report and shows it there.
func (p *page) chart(name string, c report.Chart) error {
	p.line("![%s](%s)\n", c.Title, name)
	return os.WriteFile(filepath.Join(p.dir, name), c.SVG(), 0o644)
}

// sections are the parts of the report and their sources, the most telling first.
var sections = []struct {
	file  string
	write func(*page, []byte) error
}{
	{"forward.json", (*page).forward}, {"pipeline.json", (*page).pipeline},
	{"table.json", (*page).table}, {"stall.json", (*page).stall},
}

func write(dir, how string) error {
	p := &page{dir: dir}
	p.line("# Results\n")
	measured := map[string]bool{}
	for _, s := range sections {
		b, err := os.ReadFile(filepath.Join(dir, s.file))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil && !measured[where(b)] {
			measured[where(b)] = true
			p.line("Machine: %s\n\nCommand: `%s`\n", where(b), how)
		}
		if err == nil {
			err = s.write(p, b)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", s.file, err)
		}
	}
	if len(measured) == 0 {
		return fmt.Errorf("%s: there are no results", dir)
	}
	return os.WriteFile(filepath.Join(dir, "report.md"), []byte(p.String()), 0o644)
}

// where returns the machine that results were measured on, as they name it.
func where(b []byte) string {
	var r struct{ Machine machine.Machine }
	_ = json.Unmarshal(b, &r) // the section reports the error
	return r.Machine.String()
}
