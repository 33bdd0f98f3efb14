package vm

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
)

// Outcomes of a case.
const (
	Pass  = "pass"
	Fail  = "fail"
	Lacks = "lacks" // every test was skipped: the kernel lacks a feature
)

// Report is the matrix, of a run or of several: see Merge.
type Report struct {
	Emulator    string     `json:"emulator"`
	Accelerator string     `json:"accelerator"` // tcg or kvm
	CPUs        int        `json:"cpus"`        // of each virtual machine
	Kernels     []OnKernel `json:"kernels"`
}

// OnKernel is a kernel with the outcomes of the cases.
type OnKernel struct {
	Name        string    `json:"name"`
	Version     string    `json:"version"`
	BootSeconds float64   `json:"bootSeconds"` // of the first boot, up to the first case
	Cases       []Outcome `json:"cases"`
}

// Outcome is a case's.
type Outcome struct {
	Case     string  `json:"case"`
	Revision string  `json:"revision"` // of the source
	Outcome  string  `json:"outcome"`
	Seconds  float64 `json:"seconds"`
	Tests    Tests   `json:"tests"`
	// Omitted are tests that were left out, with the reason.
	Omitted []string `json:"omitted,omitempty"`
	// Why is the reason of a failure that is not a test's.
	Why string `json:"why,omitempty"`
	// Files is the folder of console, output and kernel log, if they were kept.
	Files string `json:"-"`
}

// decide sets the outcome of a case that has ended, on a kernel of this version.
func (o *Outcome) decide(c *Case, exit int, timedOut bool, kernel []string, version string) {
	switch {
	case timedOut:
		o.Outcome, o.Why = Fail, "it did not end in time"
	case len(kernel) > 0:
		o.Outcome, o.Why = Fail, "the kernel reports: "+kernel[0]
	case exit != 0 || o.Tests.Failed > 0:
		o.Outcome = Fail
		if o.Tests.Failed == 0 {
			o.Why = fmt.Sprintf("exit status %d", exit)
		}
	case o.Tests.unexplained(version, c.NICs) != "":
		o.Outcome, o.Why = Fail, "a test was skipped for what neither this kernel nor the driver lacks: "+o.Tests.unexplained(version, c.NICs)
	case o.Tests.Skipped == 0 && o.Tests.Passed > 0 && o.Tests.Depth < strings.Count(c.Run, "/"):
		o.Outcome, o.Why = Fail, "no subtest ran of "+c.Run
	case o.Tests.Passed > 0:
		o.Outcome = Pass
	case o.Tests.Skipped > 0:
		o.Outcome = Lacks
	default:
		o.Outcome, o.Why = Fail, "no test ran"
	}
}

// Failed returns the number of cases that failed, of all kernels.
func (r *Report) Failed() int {
	n := 0
	for _, k := range r.Kernels {
		for _, c := range k.Cases {
			if c.Outcome == Fail {
				n++
			}
		}
	}
	return n
}

// Markdown writes the matrix: a row per case, a column per kernel, and then the reasons of
// skipped tests and failures.
func (r *Report) Markdown(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "# Kernels and drivers\n\nWritten by `make test-vm`. %s, %s.\nSource:\n\n%s\n",
		r.Emulator, r.Accelerator, item(strings.Join(r.revisions(), ", ")))
	b.WriteString("A cell has the tests that passed, with subtests. *Skipped* tests need a feature that the kernel or the\n" +
		"driver lacks; those *left out* fail without Weir, too. The reasons are below, with the message of `weir check`.\n\n| Case |")
	for _, k := range r.Kernels {
		fmt.Fprintf(&b, " %s |", k.Version)
	}
	b.WriteString("\n| --- |" + strings.Repeat(" --- |", len(r.Kernels)) + "\n")
	for _, name := range r.rows() {
		fmt.Fprintf(&b, "| %s |", name)
		for _, k := range r.Kernels {
			fmt.Fprintf(&b, " %s |", k.cell(name))
		}
		b.WriteByte('\n')
	}
	for _, k := range r.Kernels {
		k.remarks(&b)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// revisions are those of the source, in the order of the cases.
func (r *Report) revisions() []string {
	var list []string
	for _, k := range r.Kernels {
		for _, c := range k.Cases {
			if !slices.Contains(list, c.Revision) {
				list = append(list, c.Revision)
			}
		}
	}
	return list
}

// Merge adds the outcomes of an earlier report that this one has none for: of other kernels,
// and of other cases. Those on another release of a kernel keep a column of their own. Cases
// that exist no more are left out.
func (r *Report) Merge(earlier *Report) {
	exists := names(Cases)
	for _, old := range earlier.Kernels {
		old.Cases = slices.DeleteFunc(old.Cases, func(o Outcome) bool {
			return !slices.Contains(exists, o.Case) || r.has(&old, o.Case)
		})
		at := slices.IndexFunc(r.Kernels, func(k OnKernel) bool { return k.Version == old.Version })
		switch {
		case len(old.Cases) == 0:
		case at < 0:
			r.Kernels = append(r.Kernels, old)
		default:
			r.Kernels[at].Cases = append(r.Kernels[at].Cases, old.Cases...)
		}
	}
	for _, k := range r.Kernels {
		slices.SortStableFunc(k.Cases, func(a, b Outcome) int {
			return cmp.Compare(slices.Index(exists, a.Case), slices.Index(exists, b.Case))
		})
	}
	slices.SortStableFunc(r.Kernels, func(a, b OnKernel) int { return compareVersions(a.Version, b.Version) })
}

// has reports whether a case has an outcome on a release of a kernel, which may have been asked
// for by another name.
func (r *Report) has(old *OnKernel, name string) bool {
	return slices.ContainsFunc(r.Kernels, func(k OnKernel) bool {
		return (k.Name == old.Name || k.Version == old.Version) && slices.ContainsFunc(k.Cases, func(o Outcome) bool { return o.Case == name })
	})
}

func (r *Report) rows() []string {
	var list []string
	for _, k := range r.Kernels {
		for _, c := range k.Cases {
			if !slices.Contains(list, c.Case) {
				list = append(list, c.Case)
			}
		}
	}
	order := names(Cases)
	slices.SortStableFunc(list, func(a, b string) int { return cmp.Compare(slices.Index(order, a), slices.Index(order, b)) })
	return list
}

func (k *OnKernel) cell(name string) string {
	for _, c := range k.Cases {
		if c.Case != name {
			continue
		}
		switch {
		case c.Outcome == Fail:
			return fmt.Sprintf("**fail** (%d of %d)", c.Tests.Failed, c.Tests.Failed+c.Tests.Passed)
		case c.Outcome == Lacks:
			return "kernel lacks it"
		}
		text := fmt.Sprint(c.Tests.Passed)
		if c.Tests.Skipped > 0 {
			text += fmt.Sprintf(", %d skipped", c.Tests.Skipped)
		}
		if len(c.Omitted) > 0 {
			text += fmt.Sprintf(", %d left out", len(c.Omitted))
		}
		return text
	}
	return ""
}

// remarks lists what a cell has no room for.
func (k *OnKernel) remarks(b *strings.Builder) {
	head := fmt.Sprintf("\n## %s\n\n", k.Version)
	var check []string
	for _, c := range k.Cases {
		check = append(check, c.Tests.Check...)
	}
	for _, c := range k.Cases {
		lines := slices.Clone(c.Tests.Failures)
		if c.Why != "" {
			lines = append([]string{c.Why}, lines...)
		}
		for i := range lines {
			lines[i] = "failed: " + lines[i]
		}
		for _, reason := range c.Tests.Reasons {
			lines = append(lines, "skipped: "+explain(reason, check))
		}
		for _, omitted := range c.Omitted {
			lines = append(lines, "left out: "+omitted)
		}
		for _, l := range lines {
			b.WriteString(head + item(c.Case+": "+strings.ReplaceAll(l, "|", "\\|")))
			head = ""
		}
	}
}

// columns is the width of documents.
const columns = 120

// item is an item of a list, in lines of at most columns where words permit it.
func item(text string) string {
	var b strings.Builder
	width := 1
	b.WriteByte('-')
	for _, word := range strings.Fields(text) {
		if width+1+len(word) > columns {
			b.WriteString("\n ")
			width = 1
		}
		b.WriteString(" " + word)
		width += 1 + len(word)
	}
	return b.String() + "\n"
}
