package vm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// suites are where the kernels come from: oldstable releases have the old ones, backports
// the new ones.
var suites = []string{"bullseye", "bookworm", "bookworm-updates", "bookworm-backports", "trixie", "trixie-updates", "trixie-backports"}

// security are the suites of the security archive.
var security = []string{"bookworm-security", "trixie-security"}

const keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"

// freshFor is how long package lists are used without asking again.
const freshFor = 7 * 24 * time.Hour

// apt runs apt with lists and a cache in a folder of its own, so that those of the machine
// stay as they are.
type apt struct {
	dir string
	log func(format string, args ...any)
}

func (a *apt) options() []string {
	return []string{
		"-qq", "-o", "Dir::Etc::sourcelist=/dev/null", "-o", "Dir::Etc::sourceparts=" + a.path("sources"),
		"-o", "Dir::State::lists=" + a.path("lists"), "-o", "Dir::Cache=" + a.path("cache"),
		"-o", "APT::Sandbox::User=", "-o", "Acquire::Languages=none", "-o", "Acquire::Retries=3",
		// Without indexes of icons and of contents.
		"-o", "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false",
		"-o", "Acquire::IndexTargets::deb::CNF::DefaultEnabled=false",
	}
}

func (a *apt) path(names ...string) string {
	return filepath.Join(append([]string{a.dir}, names...)...)
}

func (a *apt) run(ctx context.Context, dir, name string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, name, append(a.options(), args...)...)
	cmd.Dir = dir
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return out, nil
}

// update fetches the package lists, unless they are fresh.
func (a *apt) update(ctx context.Context) error {
	stamp := a.path("updated")
	if s, err := os.Stat(stamp); err == nil && time.Since(s.ModTime()) < freshFor {
		return nil
	}
	for _, d := range []string{"sources", "lists/partial", "cache/archives/partial"} {
		if err := os.MkdirAll(a.path(d), 0o755); err != nil {
			return err
		}
	}
	if _, err := os.Stat(keyring); err != nil {
		return errors.New("no archive keyring of Debian: install debian-archive-keyring")
	}
	var list strings.Builder
	for _, s := range suites {
		fmt.Fprintf(&list, "deb [signed-by=%s] http://deb.debian.org/debian %s main\n", keyring, s)
	}
	for _, s := range security {
		fmt.Fprintf(&list, "deb [signed-by=%s] http://deb.debian.org/debian-security %s main\n", keyring, s)
	}
	if err := os.WriteFile(a.path("sources", "debian.list"), []byte(list.String()), 0o644); err != nil {
		return err
	}
	a.log("fetch the package lists of Debian")
	if _, err := a.run(ctx, "", "apt-get", "update"); err != nil {
		return err
	}
	return os.WriteFile(stamp, nil, 0o644)
}

// kernels returns the names of all packages of kernels.
func (a *apt) kernels(ctx context.Context) ([]string, error) {
	out, err := a.run(ctx, "", "apt-cache", "search", "--names-only", "^linux-(image|binary|modules)-[0-9].*-amd64$")
	if err != nil {
		return nil, err
	}
	var names []string
	for line := range strings.Lines(string(out)) {
		name, _, _ := strings.Cut(line, " - ")
		names = append(names, strings.TrimSpace(name))
	}
	return names, nil
}

// download fetches packages and returns their files.
func (a *apt) download(ctx context.Context, packages ...string) ([]string, error) {
	dir, err := os.MkdirTemp(a.dir, "download-")
	if err != nil {
		return nil, err
	}
	a.log("fetch %s", strings.Join(packages, ", "))
	if _, err := a.run(ctx, dir, "apt-get", append([]string{"download"}, packages...)...); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return filepath.Glob(filepath.Join(dir, "*.deb"))
}
