package explain

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/spf13/cobra"

	"github.com/weirlb/weir/cmd/weir/translate"
	"github.com/weirlb/weir/discovery"
	"github.com/weirlb/weir/discovery/manifest"
	"github.com/weirlb/weir/perf/golden"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"weir": weir})
}

// weir is the program as far as the scripts need it; errors and exit status
// are as in cmd/weir.
func weir() {
	root := &cobra.Command{Use: "weir", SilenceErrors: true, SilenceUsage: true}
	root.AddCommand(Command())
	err := root.Execute()
	if err == nil {
		os.Exit(0)
	}
	for line := range strings.SplitSeq(err.Error(), "\n") {
		fmt.Fprintln(os.Stderr, "weir:", line)
	}
	var coder interface{ ExitCode() int }
	if errors.As(err, &coder) {
		os.Exit(coder.ExitCode())
	}
	os.Exit(1)
}

// TestScripts runs testdata/script. Besides testscript's own commands they have
//
//	table NODE
//
// which reads the directory m once more, as a running Weir on NODE does that
// is told of a change, and writes what it explains to the file got. A Weir
// that starts with the same files must explain the same, unless something
// stays as it was last served. With -stays it need not.
//
//	status N COMMAND...
//
// runs a program that must exit with status N.
//
//	generate garbage|bomb|endpoints N FILE
//
// writes a file that is too large for a script: N random bytes; a document
// whose N levels of YAML aliases stand for 9^N values; the Endpoints object of
// Service default/web with N addresses, of which the first 100 are not ready.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                "testdata/script",
		UpdateScripts:      golden.Update(),
		RequireUniqueNames: true,
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"table":    table,
			"status":   status,
			"generate": generate,
		},
		Setup: func(env *testscript.Env) error {
			env.Values["sources"] = map[string]*manifest.Source{}
			return nil
		},
	})
}

func table(ts *testscript.TestScript, neg bool, args []string) {
	stays := len(args) > 0 && args[0] == "-stays"
	if stays {
		args = args[1:]
	}
	if neg || len(args) != 1 {
		ts.Fatalf("usage: table [-stays] NODE")
	}
	sources := ts.Value("sources").(map[string]*manifest.Source)
	node, dir := args[0], ts.MkAbs("m")
	if sources[node] == nil {
		sources[node] = newSource(dir, node)
	}
	got := explainDir(ts, sources[node], node, dir)
	if fresh := explainDir(ts, newSource(dir, node), node, dir); fresh != got && !stays {
		ts.Fatalf("after the change:\n%s\nafter a start:\n%s", got, fresh)
	}
	ts.Check(os.WriteFile(ts.MkAbs("got"), []byte(got), 0o644))
}

func newSource(dir, node string) *manifest.Source {
	return manifest.New(manifest.Config{
		Path: dir, Shorter: time.Nanosecond, // copies in place are complete here
		Store: discovery.Options{NodeName: node, Supported: translate.Supported, Names: discovery.NoNames{}},
		Log:   slog.New(slog.DiscardHandler),
	})
}

func explainDir(ts *testscript.TestScript, src *manifest.Source, name, dir string) string {
	report, err := src.Load()
	ts.Check(err)
	src.Flush()
	q := Question{Services: src.Services(), Node: src.Node(), Report: report}
	out, err := q.Answer()
	ts.Check(err)
	var b strings.Builder
	ts.Check(out.Render(&b))
	for _, e := range report.Errors {
		if e.Service.Name == "" {
			fmt.Fprintf(&b, "\nerror: %s\n", e.Error())
		}
	}
	return strings.ReplaceAll(b.String(), dir+"/", "")
}

func status(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: status N COMMAND...")
	}
	err := ts.Exec(args[1], args[2:]...)
	got := 0
	var exit interface{ ExitCode() int }
	switch {
	case err == nil:
	case errors.As(err, &exit):
		got = exit.ExitCode()
	default:
		ts.Fatalf("%v", err)
	}
	if fmt.Sprint(got) != args[0] {
		ts.Fatalf("exit status %d, want %s", got, args[0])
	}
}
