package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
)

// options are the command line.
type options struct {
	root     string   // checkout of Weir
	out      string   // directory to write, emptied first
	arches   []string // of GOARCH
	formats  []string
	version  string // empty: of the build
	time     string // RFC 3339; empty: of the revision
	modified bool   // accept a changed tree
	// certificates is a file with those of public authorities, for the image.
	certificates string
}

func main() {
	o, err := parse(os.Args[1:])
	if err == nil {
		err = run(o)
	}
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

// architectures have syscalls and BPF objects that Weir is built for.
var architectures = []string{"amd64", "arm64"}

var formats = []string{"deb", "rpm", "tar.gz", "oci.tar", "chart"}

func parse(args []string) (options, error) {
	var o options
	f := flag.NewFlagSet("release", flag.ContinueOnError)
	f.Usage = func() {
		fmt.Fprint(f.Output(), `Builds binaries, packages, container images, chart, bills of materials and checksums of a release.

Usage:
  make release VERSION=1.2.3                       # all architectures, into bin/release
  make deb                                         # the package of this machine alone, into bin/deb
  go -C deploy/release run . --arch amd64 --out /tmp/release

Flags:
`)
		f.PrintDefaults()
	}
	f.StringVar(&o.root, "root", "../..", "`directory` of the checkout")
	f.StringVar(&o.out, "out", "../../bin/release", "`directory` to write; emptied first")
	arches := f.String("arch", strings.Join(architectures, ","), "comma-separated `architectures`")
	kinds := f.String("formats", strings.Join(formats, ","), "comma-separated `formats`")
	f.StringVar(&o.version, "version", "", "`version` such as v1.2.3 (default: of the tag or the revision)")
	f.StringVar(&o.time, "time", "", "`time` of all files, RFC 3339 (default: of the revision)")
	f.StringVar(&o.certificates, "certificates", "/etc/ssl/certs/ca-certificates.crt", "`file` with certificates of public authorities, for oci.tar")
	f.BoolVar(&o.modified, "modified", false, "accept a tree with changes that are not committed")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	var err error
	if o.arches, err = list("--arch", *arches, architectures); err != nil {
		return o, err
	}
	if o.formats, err = list("--formats", *kinds, formats); err != nil {
		return o, err
	}
	if f.NArg() > 0 {
		return o, fmt.Errorf("unexpected argument %q", f.Arg(0))
	}
	return o, nil
}

// list splits a comma-separated value whose items must be among known.
func list(name, value string, known []string) ([]string, error) {
	items := strings.Split(value, ",")
	for _, item := range items {
		if !slices.Contains(known, item) {
			return nil, fmt.Errorf("%s: %q is not one of %s", name, item, strings.Join(known, ", "))
		}
	}
	return items, nil
}

func run(o options) error {
	root, err := filepath.Abs(o.root)
	if err != nil {
		return err
	}
	if _, err := os.Stat(filepath.Join(root, "cmd/weir")); err != nil {
		return fmt.Errorf("--root: %w: not a checkout of Weir", err)
	}
	if err := empty(o.out); err != nil {
		return err
	}
	stage, err := os.MkdirTemp("", "weir-release-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(stage)

	host, err := build(root, stage, runtime.GOARCH, o)
	if err != nil {
		return err
	}
	extras, err := generate(host, stage)
	if err != nil {
		return err
	}
	for _, arch := range o.arches {
		b := host
		if arch != host.arch {
			if b, err = build(root, stage, arch, o); err != nil {
				return err
			}
		}
		b.extras = extras
		if err := b.write(o); err != nil {
			return fmt.Errorf("%s: %w", arch, err)
		}
		fmt.Fprintf(os.Stderr, "%s: weir %s, %s\n", arch, b.version, b.time.Format(time.RFC3339))
	}
	if slices.Contains(o.formats, "chart") {
		if err := host.chart(o.out); err != nil {
			return fmt.Errorf("chart: %w", err)
		}
	}
	return checksums(o.out)
}

// empty removes the files of an earlier release. It refuses a directory with
// anything else in it.
func empty(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), "weir") && e.Name() != sums {
			return fmt.Errorf("--out: %s has %s, which is no part of a release", dir, e.Name())
		}
	}
	for _, e := range entries {
		if err := os.Remove(filepath.Join(dir, e.Name())); err != nil {
			return err
		}
	}
	return nil
}
