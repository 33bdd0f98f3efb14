package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/weirlb/weir/cmd/weir/config"
	"github.com/weirlb/weir/perf/golden"
)

func TestReferenceIsCurrent(t *testing.T) {
	t.Setenv("NODE_NAME", "")
	golden.File(t, "README.md", reference(newRoot()))
}

// Every command says what it does and shows how it is called.
func TestEveryCommandExplainsItself(t *testing.T) {
	for _, c := range commands(newRoot()) {
		if c.Short == "" || c.Example == "" && c.Long == "" {
			t.Errorf("%s has no short text or neither long text nor examples", c.CommandPath())
		}
		if strings.HasSuffix(c.Short, ".") {
			t.Errorf("%s: the short text ends with a full stop", c.CommandPath())
		}
	}
}

// pflag takes the first backquoted word of a usage for the name of the value, and
// a bool has no value.
func TestFlagUsagesNameOneValue(t *testing.T) {
	for _, c := range commands(newRoot()) {
		c.NonInheritedFlags().VisitAll(func(f *pflag.Flag) {
			name, usage := pflag.UnquoteUsage(f)
			_, boolean := f.Value.(interface{ IsBoolFlag() bool })
			if strings.Contains(usage, "`") || strings.Contains(name, " ") || boolean && strings.Contains(f.Usage, "`") {
				t.Errorf("%s --%s: the value would be called %q: %s", c.CommandPath(), f.Name, name, f.Usage)
			}
		})
	}
}

// reference is the command line as Markdown.
func reference(root *cobra.Command) string {
	b := &strings.Builder{}
	b.WriteString("# The command line\n\n<!-- Written by go generate from the commands themselves. -->\n\n")
	b.WriteString(root.Long + "\n\n")
	for _, c := range commands(root) {
		fmt.Fprintf(b, "- [%s](#%s): %s\n", c.CommandPath(), strings.ReplaceAll(c.CommandPath(), " ", "-"), c.Short)
	}
	fmt.Fprintf(b, "- weir completion: shell completion (`weir completion bash --help`)\n")
	for _, c := range commands(root) {
		fmt.Fprintf(b, "\n## %s\n\n", c.CommandPath())
		long := c.Long
		if long == "" {
			long = c.Short + "."
		}
		fmt.Fprintf(b, "%s\n\n", long)
		fmt.Fprintf(b, "    %s\n", c.UseLine())
		if c.Example != "" {
			fmt.Fprintf(b, "\nExamples:\n\n%s\n", indent(c.Example))
		}
		flags(b, c.NonInheritedFlags())
	}
	b.WriteString("\n## Configuration flags\n\nFlags of `weir run`, `weir check`, `weir doctor` and `weir cleanup` that override fields of the\n")
	b.WriteString("[configuration file](config/README.md).\n")
	rows(b, configuration)
	return b.String()
}

// configuration are the flags that override the configuration file.
var configuration = func() *pflag.FlagSet {
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	config.AddFlags(fs)
	return fs
}()

// flags lists the flags of a command, but for those of the configuration.
func flags(b *strings.Builder, all *pflag.FlagSet) {
	own, configured := pflag.NewFlagSet("", pflag.ContinueOnError), 0
	all.VisitAll(func(f *pflag.Flag) {
		if c := configuration.Lookup(f.Name); c != nil && c.Usage == f.Usage && all.Lookup("config") != nil {
			configured++
			return
		}
		own.AddFlag(f)
	})
	if configured > 0 {
		b.WriteString("\nThis command has the [configuration flags](#configuration-flags).\n")
	}
	rows(b, own)
}

// rows is a table of flags.
func rows(b *strings.Builder, fs *pflag.FlagSet) {
	first := true
	fs.VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" {
			return
		}
		if first {
			b.WriteString("\n| Flag | Default | Meaning |\n| --- | --- | --- |\n")
			first = false
		}
		value, usage := pflag.UnquoteUsage(f)
		name := "`--" + f.Name
		if value != "" {
			name += " " + value
		}
		name += "`"
		if f.Shorthand != "" {
			name = "`-" + f.Shorthand + "`, " + name
		}
		def := f.DefValue
		switch def {
		case "", "[]", "false", "0":
			def = ""
		default:
			def = "`" + def + "`"
		}
		fmt.Fprintf(b, "| %s | %s | %s |\n", escape(name), escape(def), escape(usage))
	})
}

func indent(s string) string {
	var out []string
	for line := range strings.SplitSeq(strings.TrimRight(s, "\n"), "\n") {
		out = append(out, "  "+line)
	}
	return strings.Join(out, "\n")
}

func escape(s string) string { return strings.ReplaceAll(s, "|", `\|`) }
