// Package vm is the command weirperf vm.
package vm

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/weirlb/weir/perf/vm"
)

// Command is weirperf vm.
func Command() *cobra.Command {
	var o vm.Options
	var results string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "vm",
		Short: "Run the tests on other kernels and emulated NICs, in virtual machines",
		Long: fmt.Sprintf(`Boots kernels of Debian in QEMU and runs test binaries there: a case is a part of
the tests, on veth pairs or on emulated NICs. Kernels and QEMU are fetched with
apt; installing QEMU needs root. KVM is used where it is there.

Kernels: %s, or any series that Debian has.
Cases: %s.`, strings.Join(vm.Kernels, ", "), strings.Join(vm.CaseNames(), ", ")),
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			root, err := moduleRoot()
			if err != nil {
				return err
			}
			began := time.Now()
			o.Root, o.Files = root, filepath.Join(root, "bin", "vm")
			o.Log = func(format string, args ...any) {
				fmt.Fprintf(cmd.ErrOrStderr(), "[%4.0f s] %s\n", time.Since(began).Seconds(), fmt.Sprintf(format, args...))
			}
			report, err := vm.Run(cmd.Context(), o)
			if report == nil || len(report.Kernels) == 0 {
				return err
			}
			return errors.Join(err, show(cmd, report, asJSON), verdict(report), save(report, results))
		},
	}
	f := cmd.Flags()
	f.StringSliceVar(&o.Kernels, "kernels", nil, "`series` of kernels (default: all)")
	f.StringSliceVar(&o.Cases, "cases", nil, "`names` of cases, or patterns such as nic-* (default: all)")
	f.BoolVar(&o.Short, "short", false, "the short form of continuous integration")
	f.IntVar(&o.CPUs, "cpus", 0, "`number` of CPUs of each virtual machine (default: 2)")
	f.StringVar(&results, "results", "", "`directory` of vm.json and vm.md, in which to replace the outcomes of these kernels and cases")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func moduleRoot() (string, error) {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}").Output()
	if err != nil {
		return "", fmt.Errorf("the tests are built from source: run this in the module: %w", err)
	}
	return strings.TrimSpace(string(out)), nil
}

func show(cmd *cobra.Command, r *vm.Report, asJSON bool) error {
	if !asJSON {
		return r.Markdown(cmd.OutOrStdout())
	}
	e := json.NewEncoder(cmd.OutOrStdout())
	e.SetIndent("", "  ")
	return e.Encode(r)
}

// save writes the report in both forms, together with what a report of earlier runs has
// about other kernels and cases.
func save(r *vm.Report, dir string) error {
	if dir == "" {
		return nil
	}
	file := filepath.Join(dir, "vm.json")
	if text, err := os.ReadFile(file); err == nil {
		var earlier vm.Report
		if err := json.Unmarshal(text, &earlier); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		r.Merge(&earlier)
	}
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	var page strings.Builder
	if err := r.Markdown(&page); err != nil {
		return err
	}
	return errors.Join(
		os.WriteFile(file, append(text, '\n'), 0o644),
		os.WriteFile(filepath.Join(dir, "vm.md"), []byte(page.String()), 0o644))
}

func verdict(r *vm.Report) error {
	if n := r.Failed(); n > 0 {
		return fmt.Errorf("%d cases failed: console and output are in bin/vm", n)
	}
	return nil
}
