package chaos

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// cgroup is a control group whose memory can be limited, of version 1 or 2.
type cgroup struct {
	dir            string
	limit, current string // names of files
	unlimited      string
}

func newCgroup(name string) (*cgroup, error) {
	for _, g := range []cgroup{
		{dir: "/sys/fs/cgroup", limit: "memory.max", current: "memory.current", unlimited: "max"},
		{dir: "/sys/fs/cgroup/memory", limit: "memory.limit_in_bytes", current: "memory.usage_in_bytes", unlimited: "-1"},
	} {
		reap(g.dir)
		g.dir = filepath.Join(g.dir, name)
		if os.Mkdir(g.dir, 0o755) != nil {
			continue
		}
		if _, err := os.Stat(filepath.Join(g.dir, g.limit)); err == nil {
			return &g, nil
		}
		_ = os.Remove(g.dir)
	}
	return nil, errors.New("no control group limits memory here")
}

// reap removes the groups of labs whose process is gone: its id is the fourth part of the
// name.
func reap(dir string) {
	groups, _ := filepath.Glob(filepath.Join(dir, "weir-lab-*"))
	for _, g := range groups {
		parts := strings.Split(filepath.Base(g), "-")
		if len(parts) < 4 {
			continue
		}
		if _, err := os.Stat("/proc/" + parts[3]); errors.Is(err, os.ErrNotExist) {
			_ = os.Remove(g)
		}
	}
}

// inside is cmd, begun in the group.
func (g *cgroup) inside(cmd *exec.Cmd) *exec.Cmd {
	args := append([]string{"-c", `echo $$ > "$0/cgroup.procs" && exec "$@"`, g.dir}, cmd.Args...)
	return exec.Command("/bin/sh", args...)
}

// press limits the memory to so many bytes more than is in use.
func (g *cgroup) press(more int64) error {
	b, err := os.ReadFile(filepath.Join(g.dir, g.current))
	if err != nil {
		return err
	}
	now, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
	if err != nil {
		return fmt.Errorf("%s: %w", g.current, err)
	}
	return g.write(strconv.FormatInt(now+more, 10))
}

func (g *cgroup) release() error { return g.write(g.unlimited) }

func (g *cgroup) write(limit string) error {
	err := os.WriteFile(filepath.Join(g.dir, g.limit), []byte(limit), 0)
	if errors.Is(err, syscall.EBUSY) {
		return nil // more is in use by now, and cannot be reclaimed
	}
	return err
}

// remove removes the group, whose processes have ended.
func (g *cgroup) remove() error { return os.Remove(g.dir) }
