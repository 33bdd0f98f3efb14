package deploy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/cmd/weir/privilege"
	"github.com/weirlb/weir/perf/netlab"
	"github.com/weirlb/weir/perf/netlab/labtest"
	"github.com/weirlb/weir/perf/netlab/patience"
	"github.com/weirlb/weir/perf/netlab/workload"
)

// service is the unit under a real systemd on the lab's edge node.
type service struct {
	*node
	dir string
	p   *netlab.Process
}

// newService starts the manager, not yet the unit.
func newService(t *testing.T) *service {
	t.Helper()
	const systemd = "/lib/systemd/systemd"
	if _, err := os.Stat(systemd); err != nil {
		labtest.Skip(t, "systemd is not installed (Debian: apt-get install systemd)")
	}
	s := &service{node: newNode(t)}
	s.dir = s.Dir()
	for _, dir := range []string{"runtime", "units", "units/weir.service.d", "home", "config/weir"} {
		if err := os.MkdirAll(filepath.Join(s.dir, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	s.write("weir.yaml", fmt.Sprintf(`
apiVersion: weir.dev/v1alpha1
kind: WeirConfiguration
nodeName: edge-1
discovery: {manifests: {path: %[1]s/services.yaml}}
interfaces: [{name: eth0}, {name: eth1}]
nodePortAddresses: [%[2]s/32]
conntrack: {maxFlows: 65536, path: %[1]s/runtime/weir/conntrack}
drain: {notReadySeconds: 0, timeoutSeconds: 0}
admin: {socket: %[1]s/runtime/weir/weir.sock}
stateDir: ""
`, managerDir, netlab.Host4(netlab.ClientNet, 1)))
	s.write("services.yaml", s.serve())
	text, err := os.ReadFile(unit)
	if err != nil {
		t.Fatal(err)
	}
	s.write("units/weir.service", string(text))
	s.write("units/weir.service.d/here.conf", s.dropIn())
	for _, target := range []string{"basic", "shutdown", "network-online"} {
		s.write("units/"+target+".target", "[Unit]\nDefaultDependencies=no\n")
	}
	copyFile(t, weir(t), filepath.Join(s.dir, "weir"))
	s.manage(systemd)
	return s
}

// dropIn changes in the unit what is elsewhere here, or cannot be had by who
// may not raise limits.
func (s *service) dropIn() string {
	var b bytes.Buffer
	fmt.Fprintf(&b, `[Service]
ExecStart=
ExecStart=%[1]s/weir run --config %[1]s/weir.yaml
StandardOutput=append:%[1]s/weir.log
StandardError=append:%[1]s/weir.log
WatchdogSec=2s
`, managerDir)
	b.WriteString(limits(s.t))
	return b.String()
}

// limits are lines of a [Service] section that replace what the unit may not raise
// here. They are empty where it may.
func limits(t *testing.T) string {
	t.Helper()
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &l); err != nil {
		t.Fatal(err)
	}
	if raised := (unix.Rlimit{Cur: l.Cur, Max: unix.RLIM_INFINITY}); unix.Setrlimit(unix.RLIMIT_MEMLOCK, &raised) == nil {
		return ""
	}
	return fmt.Sprintf("LimitMEMLOCK=%d\nCapabilityBoundingSet=CAP_IPC_LOCK\nOOMScoreAdjust=0\n", l.Max)
}

func (s *service) write(name, text string) {
	s.t.Helper()
	if err := os.WriteFile(filepath.Join(s.dir, name), []byte(text), 0o644); err != nil {
		s.t.Fatal(err)
	}
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	in, err := os.Open(from)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	_, err = io.Copy(out, in)
	if e := out.Close(); err != nil || e != nil {
		t.Fatal(err, e)
	}
}

// manage starts systemd in a cgroup of its own.
func (s *service) manage(systemd string) {
	t := s.t
	control := makeControl(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = []string{(&manager{Dir: s.dir, Control: control, Systemd: systemd}).variable()}
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS}
	log, err := os.Create(filepath.Join(s.dir, "systemd.log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	if s.p, err = s.Edge.Edge.Start(cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			b, _ := os.ReadFile(log.Name())
			t.Logf("systemd said:\n%s", b)
		}
		_ = s.p.Kill()
	})
	s.until("the manager answers", func() error {
		_, err := s.systemctl("list-units")
		return err
	})
}

// makeControl makes a cgroup that ends with the test.
func makeControl(t *testing.T) string {
	t.Helper()
	root := "/sys/fs/cgroup"
	if _, err := os.Stat(root + "/cgroup.procs"); err != nil {
		root += "/unified"
	}
	control := filepath.Join(root, fmt.Sprintf("weir-test-%d", os.Getpid()))
	if err := os.Mkdir(control, 0o755); err != nil {
		labtest.Skip(t, fmt.Sprintf("systemd needs cgroups of version 2 that can be written: %v", err))
	}
	t.Cleanup(func() { removeControl(t, control) })
	return control
}

// removeControl removes a cgroup whose processes are about to be gone, and the one of the
// same name that systemd makes in its own hierarchy, where there are both versions.
func removeControl(t *testing.T, dir string) {
	for _, dir := range []string{dir, filepath.Join("/sys/fs/cgroup/systemd", filepath.Base(dir))} {
		err := errors.New("not tried")
		for deadline := time.Now().Add(within); err != nil && time.Now().Before(deadline); {
			if err = removeTree(dir); err != nil {
				time.Sleep(20 * time.Millisecond)
			}
		}
		if err != nil {
			t.Errorf("cgroup: %v", err)
		}
	}
}

// removeTree removes a cgroup and those in it, if there is such a cgroup.
func removeTree(dir string) error {
	var dirs []string
	_ = filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			dirs = append(dirs, path)
		}
		return nil
	})
	var err error
	for i := len(dirs) - 1; i >= 0; i-- {
		err = os.Remove(dirs[i])
	}
	return err
}

// systemctl runs inside the manager's namespaces: it answers nobody whose
// process it cannot see.
func (s *service) systemctl(args ...string) (string, error) {
	enter := []string{fmt.Sprintf("--target=%d", s.p.Cmd.Process.Pid), "--pid", "--mount", "systemctl", "--user"}
	cmd := exec.Command("nsenter", append(enter, args...)...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "XDG_RUNTIME_DIR=" + managerDir + "/runtime"}
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("systemctl %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out)), err
}

func (s *service) must(args ...string) {
	s.t.Helper()
	if _, err := s.systemctl(args...); err != nil {
		s.t.Fatal(err)
	}
}

// property is one of the unit's.
func (s *service) property(name string) string {
	s.t.Helper()
	v, err := s.systemctl("show", "weir.service", "--value", "--property", name)
	if err != nil {
		s.t.Fatal(err)
	}
	return v
}

func (s *service) until(what string, f func() error) {
	s.t.Helper()
	var err error
	for deadline := time.Now().Add(within); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if err = f(); err == nil {
			return
		}
	}
	s.t.Fatalf("%s: %v", what, err)
}

// restartLosesNothing restarts the unit twice, while clients send datagrams, each of a new flow: the
// sockets pass from process to process, and packets wait in them.
func (s *service) restartLosesNothing() {
	t := s.t
	ctx, stop := context.WithCancel(t.Context())
	lost := make(chan error, 1)
	load := workload.UDPLoad{
		Namespace: s.Client, Targets: []netip.AddrPort{netip.AddrPortFrom(netlab.Host4(netlab.ClientNet, 1), echoPort)},
		Concurrency: 20, Pause: 20 * time.Millisecond, Timeout: patience.For(10 * time.Second),
	}
	go func() {
		r, err := load.Run(ctx)
		if err == nil {
			err = r.Err()
		}
		lost <- err
	}()
	for n := range 2 {
		s.must("restart", "weir.service")
		if err := s.download(reach[0].nodePort); err != nil {
			t.Errorf("after restart %d: %v", n, err)
		}
	}
	stop()
	if err := <-lost; err != nil {
		t.Errorf("datagrams: %v", err)
	}
	said, err := os.ReadFile(s.log)
	if n := bytes.Count(said, []byte("carrying on with the sockets of the last process")); n != 2 {
		t.Errorf("%d of 2 processes had the sockets of the last, %v", n, err)
	}
	s.until("the service manager has no descriptor left", func() error {
		if n := s.property("NFileDescriptorStore"); n != "0" {
			return fmt.Errorf("it has %s", n)
		}
		return nil
	})
}

// The unit as it is, under a real systemd: it serves when it says so, reloads,
// is brought back by the watchdog with its flows, and leaves.
func TestWireUnitLives(t *testing.T) {
	s := newService(t)
	s.must("start", "weir.service") // returns after READY=1
	for _, r := range reach {
		if err := s.download(r.nodePort); err != nil {
			t.Errorf("%s: %v", r.name, err)
		}
	}
	s.until("the status is told", func() error {
		if text := s.property("StatusText"); !strings.HasPrefix(text, "serving manifests") {
			return fmt.Errorf("it is %q", text)
		}
		return nil
	})

	s.must("reload", "weir.service")
	s.until("the unit has reloaded", func() error {
		log, _ := os.ReadFile(s.log)
		if !strings.Contains(string(log), "msg=reloaded") || s.property("ActiveState") != "active" {
			return fmt.Errorf("it is %s", s.property("ActiveState"))
		}
		return nil
	})

	first := s.property("MainPID")
	s.must("kill", "--signal=STOP", "weir.service") // no goroutine goes on
	s.until("the watchdog brings it back", func() error {
		if pid := s.property("MainPID"); pid == first || s.property("ActiveState") != "active" {
			return fmt.Errorf("process %s, state %s", pid, s.property("SubState"))
		}
		return nil
	})
	if err := s.download(reach[0].nodePort); err != nil {
		t.Errorf("after the watchdog: %v", err)
	}

	s.restartLosesNothing()

	s.must("stop", "weir.service")
	if result := s.property("Result"); result != "success" {
		t.Errorf("it ended with %s", result)
	}
	if _, err := os.Stat(filepath.Join(s.dir, "runtime/weir/conntrack")); err != nil {
		t.Errorf("the flow table is gone: %v", err)
	}
	log, err := os.ReadFile(s.log)
	if err != nil {
		t.Fatal(err)
	}
	for means, err := range privilege.Available() {
		if said := fmt.Sprintf("%s=%q", strings.ToLower(means), "in force"); err == nil && !strings.Contains(string(log), said) {
			t.Errorf("the log has not %s", said)
		}
	}
	for _, refused := range []string{unix.EPERM.Error(), unix.EACCES.Error(), unix.EROFS.Error(), "not a BPF file system"} {
		if strings.Contains(string(log), refused) {
			t.Errorf("something was refused: %s", refused)
		}
	}
}
