package main

import (
	"debug/buildinfo"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// binary is Weir built for an architecture.
type binary struct {
	root    string // checkout
	file    string
	arch    string // of GOARCH
	version string // without the leading v
	time    time.Time
	info    *buildinfo.BuildInfo
	extras  string // directory of generated files: completion, man
}

// compile builds ./cmd/weir with the flags of the container image, and with a version, if it
// is not empty.
func compile(root, file, arch, version string) error {
	flags := "-ldflags=-s"
	if version != "" {
		flags += " -X github.com/weirlb/weir/cmd/weir/version.release=v" + strings.TrimPrefix(version, "v")
	}
	cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=auto", flags, "-o", file, "./cmd/weir")
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+arch, "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go build for %s: %w\n%s", arch, err, out)
	}
	return nil
}

func build(root, stage, arch string, o options) (*binary, error) {
	b := &binary{root: root, file: filepath.Join(stage, "weir-"+arch), arch: arch}
	if err := compile(root, b.file, arch, o.version); err != nil {
		return nil, err
	}
	var err error
	if b.info, err = buildinfo.ReadFile(b.file); err != nil {
		return nil, err
	}
	return b, b.identify(o)
}

// identify takes version and time from what the toolchain recorded, unless they
// are given.
func (b *binary) identify(o options) error {
	set := map[string]string{}
	for _, s := range b.info.Settings {
		set[s.Key] = s.Value
	}
	if set["vcs.modified"] == "true" && !o.modified {
		return errors.New("the tree has changes that are not committed; commit them, or use --modified")
	}
	version := o.version
	if version == "" {
		version = b.info.Main.Version
	}
	if version == "" || version == "(devel)" {
		return errors.New("git tells no version of this tree; use --version")
	}
	b.version = strings.TrimPrefix(version, "v")

	at := o.time
	if at == "" {
		at = set["vcs.time"]
	}
	if at == "" {
		return errors.New("git tells no time of this tree; use --time")
	}
	var err error
	if b.time, err = time.Parse(time.RFC3339, at); err != nil {
		return fmt.Errorf("--time: %w", err)
	}
	b.time = b.time.UTC()
	return nil
}

// generate writes shell completion and man pages with a binary for this machine, and the
// documents, and returns their directory.
func generate(b *binary, stage string) (string, error) {
	dir := filepath.Join(stage, "extras")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return "", err
	}
	for shell, file := range map[string]string{"bash": "weir.bash", "zsh": "_weir", "fish": "weir.fish"} {
		out, err := exec.Command(b.file, "completion", shell).Output()
		if err != nil {
			return "", fmt.Errorf("weir completion %s: %w", shell, err)
		}
		if err := os.WriteFile(filepath.Join(dir, file), out, 0o644); err != nil {
			return "", err
		}
	}
	man := exec.Command(b.file, "man", filepath.Join(dir, "man"))
	man.Env = append(os.Environ(), fmt.Sprintf("SOURCE_DATE_EPOCH=%d", b.time.Unix()), "NODE_NAME=", "TZ=UTC")
	if out, err := man.CombinedOutput(); err != nil {
		return "", fmt.Errorf("weir man: %w\n%s", err, out)
	}
	return dir, writeDocuments(b.root, filepath.Join(dir, "doc"))
}
