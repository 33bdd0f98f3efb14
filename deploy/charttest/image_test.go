package charttest

import (
	"bytes"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/linter"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
)

// stages parses the Dockerfile as BuildKit does, with its lint rules.
func stages(t *testing.T) []instructions.Stage {
	t.Helper()
	text, err := os.ReadFile("../image/Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	file, err := parser.Parse(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range file.Warnings {
		t.Errorf("warning: %s", w.Short)
	}
	lint := linter.New(&linter.Config{Warn: func(rule, description, _, message string, at []parser.Range) {
		t.Errorf("line %v: %s: %s (%s)", at, rule, message, description)
	}})
	out, _, err := instructions.Parse(file.AST, lint)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestImageIsTheBinaryAndCertificates(t *testing.T) {
	all := stages(t)
	last := all[len(all)-1]
	if last.BaseName != "scratch" {
		t.Errorf("the image begins with %s", last.BaseName)
	}
	var copied []string
	for _, c := range last.Commands {
		switch c := c.(type) {
		case *instructions.CopyCommand:
			copied = append(copied, c.DestPath)
			if c.From != all[0].Name {
				t.Errorf("%s comes from %q", c.DestPath, c.From)
			}
		case *instructions.RunCommand, *instructions.AddCommand:
			t.Errorf("the last stage has %v", c)
		}
	}
	if want := []string{"/etc/ssl/certs/ca-certificates.crt", "/weir"}; !slices.Equal(copied, want) {
		t.Errorf("it copies %v, want %v", copied, want)
	}
}

// The pods give arguments only: the image's entry point is the binary, and its
// own arguments are the pods'.
func TestImageRunsWhatThePodAsksFor(t *testing.T) {
	all := stages(t)
	var entry, args []string
	for _, c := range all[len(all)-1].Commands {
		switch c := c.(type) {
		case *instructions.EntrypointCommand:
			entry = c.CmdLine
			if c.PrependShell {
				t.Error("the entry point needs a shell")
			}
		case *instructions.CmdCommand:
			args = c.CmdLine
			if c.PrependShell {
				t.Error("the arguments need a shell")
			}
		}
	}
	if !slices.Equal(entry, []string{"/weir"}) {
		t.Errorf("entry point %v", entry)
	}
	pod := daemonSet(t, mustTemplate(t, "")).Spec.Template.Spec.Containers[0]
	if len(pod.Command) > 0 || !slices.Equal(pod.Args, args) {
		t.Errorf("the pod runs %v %v, the image %v", pod.Command, pod.Args, args)
	}
}

// The toolchain of the image is that of go.mod.
func TestImageIsBuiltByTheModulesToolchain(t *testing.T) {
	mod, err := os.ReadFile("../../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(mod), "\ngo ")
	version, _, _ := strings.Cut(after, "\n")
	parts := strings.SplitN(strings.TrimSpace(version), ".", 3)
	if want := "golang:" + parts[0] + "." + parts[1] + "-"; !strings.HasPrefix(stages(t)[0].BaseName, want) {
		t.Errorf("built from %s, want %s...", stages(t)[0].BaseName, want)
	}
}
