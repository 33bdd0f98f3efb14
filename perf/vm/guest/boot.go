package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/perf/vm/job"
)

// mount is an argument list of mount(2).
type mount struct {
	source, target, kind string
	flags                uintptr
	data                 string
}

func mountAll(list ...mount) error {
	for _, m := range list {
		if err := os.MkdirAll(m.target, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(m.source, m.target, m.kind, m.flags, m.data); err != nil {
			return fmt.Errorf("mount %s on %s: %w", m.source, m.target, err)
		}
	}
	return nil
}

// shared are the options of file systems of the harness. The read-only root may be cached
// without asking again.
const shared = "trans=virtio,version=9p2000.L,msize=262144"

// boot makes a root of the harness's file system below a tmpfs, and enters it.
func boot() error {
	err := mountAll(
		mount{"proc", "/proc", "proc", 0, ""},
		mount{"sysfs", "/sys", "sysfs", 0, ""},
		mount{"dev", "/dev", "devtmpfs", 0, ""})
	if err != nil {
		return err
	}
	if err := bootModules(); err != nil {
		return err
	}
	err = mountAll(
		mount{"host", "/lower", "9p", unix.MS_RDONLY, shared + ",cache=loose"},
		mount{"upper", "/upper", "tmpfs", 0, "size=60%"},
	)
	if err != nil {
		return err
	}
	for _, d := range []string{"/upper/data", "/upper/work"} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
	}
	err = mountAll(
		mount{"root", "/root", "overlay", 0, "lowerdir=/lower,upperdir=/upper/data,workdir=/upper/work"},
		mount{"/proc", "/root/proc", "", unix.MS_MOVE, ""},
		mount{"/sys", "/root/sys", "", unix.MS_MOVE, ""},
		mount{"/dev", "/root/dev", "", unix.MS_MOVE, ""},
		mount{job.Folder, "/root" + job.Folder, "", unix.MS_BIND, ""},
		mount{"out", "/root" + job.Out, "9p", 0, shared})
	if err != nil {
		return err
	}
	if err := errors.Join(unix.Chdir("/root"), unix.Mount(".", "/", "", unix.MS_MOVE, ""), unix.Chroot("."), unix.Chdir("/")); err != nil {
		return fmt.Errorf("enter the root: %w", err)
	}
	return system()
}

// bootModules loads the modules of the initramfs, in the order of their names.
func bootModules() error {
	files, err := filepath.Glob("/modules/*.ko")
	if err != nil {
		return err
	}
	for _, name := range files {
		f, err := os.Open(name)
		if err != nil {
			return err
		}
		err = unix.FinitModule(int(f.Fd()), "", 0)
		f.Close()
		if err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("load %s: %w", name, err)
		}
	}
	return nil
}

// system mounts what a running system has.
func system() error {
	err := mountAll(
		mount{"run", "/run", "tmpfs", 0, "mode=755"},
		mount{"pts", "/dev/pts", "devpts", 0, ""},
		mount{"shm", "/dev/shm", "tmpfs", 0, ""},
		mount{"cgroup", "/sys/fs/cgroup", "cgroup2", 0, ""},
		mount{"bpf", "/sys/fs/bpf", "bpf", 0, "mode=700"},
		mount{"tmp", "/run/tmp", "tmpfs", 0, "mode=1777"})
	if err != nil {
		return err
	}
	_ = mountAll(mount{"tracing", "/sys/kernel/tracing", "tracefs", 0, ""})
	for _, d := range []string{"/run/netns", "/run/lock"} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
	}
	if err := os.WriteFile("/proc/sys/net/core/netdev_max_backlog", []byte(backlog), 0); err != nil {
		return err
	}
	return unix.Sethostname([]byte("guest"))
}

// backlog is the number of packets that wait for a CPU, in all namespaces together. On an
// emulated CPU the kernel's 1,000 are soon there. A packet more is lost, and if it is a SYN-ACK
// sent again, the kernel also forgets the half-open connection: a RST answers the client's ACK.
const backlog = "10000"

// readJob returns the job.
func readJob() (*job.Job, error) {
	text, err := os.ReadFile(job.File)
	if err != nil {
		return nil, err
	}
	var j job.Job
	return &j, json.Unmarshal(text, &j)
}

// modaliases returns the aliases of all devices of a bus: no udev loads their drivers.
func modaliases(bus string) []string {
	files, _ := filepath.Glob("/sys/bus/" + bus + "/devices/*/modalias")
	var list []string
	for _, f := range files {
		if text, err := os.ReadFile(f); err == nil {
			list = append(list, strings.TrimSpace(string(text)))
		}
	}
	return list
}
