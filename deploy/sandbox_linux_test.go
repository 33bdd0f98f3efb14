package deploy

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// sandbox is what a container runtime makes around a process, as far as it
// matters here (OCI runtime specification, config-linux): a root file system of
// its own, a read-only /proc/sys and /sys, mounts, a bounding set of
// capabilities, limits. Network and PID namespace stay: the pod has the host's.
type sandbox struct {
	Root         string   // empty directory; becomes the root file system
	Binary       string   // is mounted as /weir; "": the image has it
	Image        string   // directory with the files of an image; "": none
	Mounts       []mount  // into the root
	Capabilities []string // all that there are: "NET_ADMIN"
	NoNewPrivs   bool
	ReadOnly     bool   // the root file system
	Memlock      uint64 // RLIMIT_MEMLOCK, bytes; 0: as it is
	Args         []string
	Env          []string
	Seccomp      bool // as a runtime's default profile has it
}

type mount struct {
	From, To string // To is absolute in the root
	ReadOnly bool
}

// sandboxVariable carries the sandbox to the process that enters it.
const sandboxVariable = "WEIR_TEST_SANDBOX"

// TestMain is also the first process of a sandbox, which it makes around itself
// to become the sandboxed program, and of a service manager's namespace.
func TestMain(m *testing.M) {
	if text, ok := os.LookupEnv(sandboxVariable); ok {
		var s sandbox
		err := json.Unmarshal([]byte(text), &s)
		if err == nil {
			err = s.become()
		}
		fmt.Fprintln(os.Stderr, "sandbox:", err)
		os.Exit(125)
	}
	if text, ok := os.LookupEnv(managerVariable); ok {
		fmt.Fprintln(os.Stderr, "manager:", manage(text))
		os.Exit(125)
	}
	if text, ok := os.LookupEnv(bootVariable); ok {
		fmt.Fprintln(os.Stderr, "boot:", bootInto(text))
		os.Exit(125)
	}
	code := m.Run()
	removeBinary()
	os.Exit(code)
}

// variable is the environment of the process that is to become the sandbox.
func (s *sandbox) variable() string {
	b, err := json.Marshal(s)
	if err != nil {
		panic(err)
	}
	return sandboxVariable + "=" + string(b)
}

// become does not return but on error.
func (s *sandbox) become() error {
	runtime.LockOSThread() // what follows is the thread's, and the exec takes it along
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("unshare: %w", err)
	}
	for _, step := range []func() error{s.fileSystem, s.limits, s.drop, s.filter} {
		if err := step(); err != nil {
			return err
		}
	}
	return fmt.Errorf("exec: %w", unix.Exec("/weir", append([]string{"/weir"}, s.Args...), s.Env))
}

func (s *sandbox) fileSystem() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := s.root(); err != nil {
		return fmt.Errorf("root: %w", err)
	}
	for _, d := range []string{"proc", "sys", "dev", "tmp"} {
		if err := os.MkdirAll(filepath.Join(s.Root, d), 0o755); err != nil {
			return err
		}
	}
	mounts := []mount{{From: "/proc", To: "/proc"}, {From: "/proc/sys", To: "/proc/sys", ReadOnly: true}}
	if s.Binary != "" {
		if err := os.WriteFile(filepath.Join(s.Root, "weir"), nil, 0o755); err != nil {
			return err
		}
		mounts = append(mounts, mount{From: s.Binary, To: "/weir", ReadOnly: true})
	}
	for _, m := range append(mounts, s.Mounts...) {
		if err := m.bind(s.Root); err != nil {
			return err
		}
	}
	if err := unix.Mount("sysfs", s.Root+"/sys", "sysfs", unix.MS_RDONLY, ""); err != nil {
		return fmt.Errorf("/sys: %w", err)
	}
	if s.ReadOnly {
		if err := unix.Mount("", s.Root, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""); err != nil {
			return fmt.Errorf("read-only root: %w", err)
		}
	}
	if err := unix.Chroot(s.Root); err != nil {
		return fmt.Errorf("chroot: %w", err)
	}
	return os.Chdir("/")
}

// root mounts what becomes the root file system: the files of the image, or nothing yet.
func (s *sandbox) root() error {
	if s.Image != "" {
		return unix.Mount(s.Image, s.Root, "", unix.MS_BIND, "")
	}
	return unix.Mount("tmpfs", s.Root, "tmpfs", 0, "mode=755")
}

func (m mount) bind(root string) error {
	to := filepath.Join(root, m.To)
	if info, err := os.Stat(m.From); err != nil {
		return err
	} else if info.IsDir() {
		if err := os.MkdirAll(to, 0o755); err != nil {
			return err
		}
	}
	if err := unix.Mount(m.From, to, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount %s: %w", m.To, err)
	}
	if m.ReadOnly {
		if err := unix.Mount("", to, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""); err != nil {
			return fmt.Errorf("mount %s read-only: %w", m.To, err)
		}
	}
	return nil
}

func (s *sandbox) limits() error {
	if s.Memlock == 0 {
		return nil
	}
	l := &unix.Rlimit{Cur: s.Memlock, Max: s.Memlock}
	if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, l); err != nil {
		return fmt.Errorf("RLIMIT_MEMLOCK: %w", err)
	}
	return nil
}

// drop takes capabilities from the bounding set: root has, after the exec,
// those that are left (capabilities(7)).
func (s *sandbox) drop() error {
	keep := map[uintptr]bool{}
	for _, name := range s.Capabilities {
		n, ok := capabilities[name]
		if !ok {
			return fmt.Errorf("capability %s is not known here", name)
		}
		keep[n] = true
	}
	for n := range uintptr(64) {
		if keep[n] {
			continue
		}
		err := unix.Prctl(unix.PR_CAPBSET_DROP, n, 0, 0, 0)
		if errors.Is(err, unix.EINVAL) { // beyond the last
			break
		}
		if err != nil {
			return fmt.Errorf("drop capability %d: %w", n, err)
		}
	}
	if s.NoNewPrivs {
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			return fmt.Errorf("no new privileges: %w", err)
		}
	}
	return nil
}

// capabilities by their names in Kubernetes.
var capabilities = map[string]uintptr{
	"NET_ADMIN": unix.CAP_NET_ADMIN, "NET_RAW": unix.CAP_NET_RAW, "BPF": unix.CAP_BPF, "IPC_LOCK": unix.CAP_IPC_LOCK,
	"SYS_ADMIN": unix.CAP_SYS_ADMIN, "PERFMON": unix.CAP_PERFMON,
}

// without is a list without one of its elements.
func without(list []string, one string) []string {
	var out []string
	for _, x := range list {
		if !strings.EqualFold(x, one) {
			out = append(out, x)
		}
	}
	return out
}
