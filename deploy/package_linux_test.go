package deploy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/perf/netlab"
	"github.com/weirlb/weir/perf/netlab/labtest"
	"github.com/weirlb/weir/perf/netlab/workload"
)

// debian is the suite of the root file system, with the systemd that packages meet.
const debian = "bookworm"

// host is a Debian of its own on the lab's edge node, with systemd as process 1.
type host struct {
	*node
	root string
	p    *netlab.Process
}

// release builds a format of a release and returns the file.
func release(t *testing.T, version, format string) string {
	t.Helper()
	dir := t.TempDir()
	cmd := exec.Command("go", "-C", "release", "run", ".", "--arch", runtime.GOARCH, "--version", version,
		"--time", "2026-01-02T03:04:05Z", "--modified", "--formats", format, "--out", dir)
	cmd.Env = append(os.Environ(), "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", cmd, err, out)
	}
	files, err := filepath.Glob(filepath.Join(dir, "*."+format))
	if err != nil || len(files) != 1 {
		t.Fatalf("files %v, %v", files, err)
	}
	return files[0]
}

func newHost(t *testing.T) *host {
	t.Helper()
	if _, err := exec.LookPath("debootstrap"); err != nil {
		labtest.Skip(t, "debootstrap is not installed (Debian: apt-get install debootstrap)")
	}
	h := &host{node: newNode(t)}
	h.root = filepath.Join(h.Dir(), "debian")
	cmd := exec.Command("debootstrap", "--variant=minbase", "--include=systemd,systemd-sysv", debian, h.root)
	if out, err := cmd.CombinedOutput(); err != nil {
		log, _ := os.ReadFile(filepath.Join(h.root, "debootstrap/debootstrap.log"))
		t.Fatalf("%v: %v\n%s\n%s", cmd, err, out, log)
	}
	h.boot()
	return h
}

// boot starts systemd in the edge node's network namespace and a cgroup of its own.
func (h *host) boot() {
	t := h.t
	control := makeControl(t)
	console := filepath.Join(h.Dir(), "console")
	log, err := os.Create(console)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = []string{(&boot{Root: h.root, Control: control, Console: console}).variable()}
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS}
	cmd.Stdout, cmd.Stderr = log, log
	if h.p, err = h.Edge.Edge.Start(cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			b, _ := os.ReadFile(console)
			entries, _ := h.run("journalctl", "--no-pager", "-u", "weir")
			t.Logf("console:\n%s\njournal:\n%s", b, entries)
		}
		_ = h.p.Kill()
	})
	h.until("systemd is up", func() error {
		out, err := h.run("systemctl", "is-system-running")
		if state := strings.TrimSpace(out); state != "running" && state != "degraded" {
			return fmt.Errorf("%q, %w", state, err)
		}
		return nil
	})
}

// run executes a program of the host.
func (h *host) run(args ...string) (string, error) {
	enter := []string{fmt.Sprintf("--target=%d", h.p.Cmd.Process.Pid), "--all", "env", "-i",
		"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND=noninteractive"}
	out, err := exec.Command("nsenter", append(enter, args...)...).CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, out)
	}
	return string(out), err
}

func (h *host) must(args ...string) string {
	h.t.Helper()
	out, err := h.run(args...)
	if err != nil {
		h.t.Fatal(err)
	}
	return out
}

func (h *host) until(what string, f func() error) {
	h.t.Helper()
	var err error
	for deadline := time.Now().Add(within); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if err = f(); err == nil {
			return
		}
	}
	h.t.Fatalf("%s: %v", what, err)
}

// write writes a file of the host.
func (h *host) write(name, text string) {
	h.t.Helper()
	file := filepath.Join(h.root, name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(text), 0o644)); err != nil {
		h.t.Fatal(err)
	}
}

// configure is what the package asks an operator for.
func (h *host) configure() {
	h.t.Helper()
	h.write("etc/weir/weir.yaml", fmt.Sprintf(`
apiVersion: weir.dev/v1alpha1
kind: WeirConfiguration
nodeName: edge-1
discovery: {manifests: {path: /etc/weir/manifests}}
interfaces: [{name: eth0}, {name: eth1}]
nodePortAddresses: [%s/32]
conntrack: {maxFlows: 65536}
drain: {notReadySeconds: 0, timeoutSeconds: 0}
`, netlab.Host4(netlab.ClientNet, 1)))
	h.write("etc/weir/manifests/services.yaml", h.serve())
	if text := limits(h.t); text != "" {
		h.write("etc/systemd/system/weir.service.d/here.conf", "[Service]\n"+text)
	}
}

// absent fails for files of the host that exist.
func (h *host) absent(names ...string) {
	h.t.Helper()
	for _, name := range names {
		if out, err := h.run("ls", "-d", name); err == nil {
			h.t.Errorf("left behind: %s", out)
		}
	}
}

// The package installs without starting, serves once it is configured, keeps
// connections over an upgrade, and leaves nothing but the manifests when it is purged.
func TestWirePackageInstallsUpgradesAndPurges(t *testing.T) {
	labtest.Require(t)
	old, next := release(t, "v0.1.0", "deb"), release(t, "v0.2.0", "deb")
	h := newHost(t)
	copyFile(t, old, filepath.Join(h.root, "root/old.deb"))
	copyFile(t, next, filepath.Join(h.root, "root/next.deb"))

	h.must("dpkg", "-i", "/root/old.deb")
	if out, err := h.run("systemctl", "is-active", "weir"); err == nil {
		t.Errorf("installation starts the service: %s", out)
	}
	h.configure()
	h.must("systemctl", "daemon-reload")
	h.must("weir", "check", "--config", "/etc/weir/weir.yaml")
	h.must("systemctl", "enable", "--now", "weir")
	for _, r := range reach {
		if err := h.download(r.nodePort); err != nil {
			t.Errorf("%s: %v", r.name, err)
		}
	}

	echo, err := workload.ServeEcho(h.ZoneA, "held", "[::]:8081")
	if err != nil {
		t.Fatal(err)
	}
	h.OnClose(echo.Close)
	conn := h.hold()
	pid := h.must("systemctl", "show", "weir", "--value", "-p", "MainPID")
	h.must("dpkg", "-i", "/root/next.deb")
	if now := h.must("systemctl", "show", "weir", "--value", "-p", "MainPID"); now == pid {
		t.Error("the upgrade does not restart the service")
	}
	if err := workload.PingPong(conn, "after the upgrade", within); err != nil {
		t.Errorf("the upgrade breaks a connection: %v", err)
	}
	if err := h.download(reach[0].nodePort); err != nil {
		t.Errorf("after the upgrade: %v", err)
	}

	h.refusesBadConfiguration(conn)

	if out := h.must("dpkg", "-P", "weir"); !strings.Contains(out, "/etc/weir stays") {
		t.Errorf("the purge does not tell of the manifests:\n%s", out)
	}
	h.must("test", "-e", "/etc/weir/manifests/services.yaml")
	h.absent("/etc/weir/weir.yaml", "/run/weir", "/var/lib/weir", "/usr/bin/weir", "/sys/fs/bpf/weir", "/sys/class/net/weir-xdp",
		"/etc/systemd/system/multi-user.target.wants/weir.service")
}

// hold opens a connection to the echo server and uses it.
func (h *host) hold() net.Conn {
	h.t.Helper()
	h.write("etc/weir/manifests/held.yaml", fmt.Sprintf(`
apiVersion: v1
kind: Service
metadata: {namespace: default, name: held}
spec: {type: NodePort, ports: [{port: 80, nodePort: 30090}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: default, name: held, labels: {kubernetes.io/service-name: held}}
addressType: IPv4
ports: [{port: 8081}]
endpoints: [{addresses: ["%s"]}]
`, reach[0].address))
	to := netip.AddrPortFrom(netlab.Host4(netlab.ClientNet, 1), 30090)
	var conn net.Conn
	h.until("the echo server answers", func() (err error) {
		ctx, cancel := context.WithTimeout(context.Background(), within)
		defer cancel()
		if conn, err = h.Client.DialContext(ctx, "tcp", to.String()); err != nil {
			return err
		}
		return workload.PingPong(conn, "before the upgrade", within)
	})
	h.OnClose(conn.Close)
	return conn
}

// An upgrade to a program that refuses the configuration leaves the running one alone.
func (h *host) refusesBadConfiguration(conn net.Conn) {
	h.t.Helper()
	good, err := os.ReadFile(filepath.Join(h.root, "etc/weir/weir.yaml"))
	if err != nil {
		h.t.Fatal(err)
	}
	h.write("etc/weir/weir.yaml", string(good)+"unknownField: 1\n")
	out := h.must("dpkg", "-i", "/root/next.deb")
	if !strings.Contains(out, "unknownField") || !strings.Contains(out, "goes on with the former version") {
		h.t.Errorf("the upgrade does not tell of the configuration:\n%s", out)
	}
	if err := workload.PingPong(conn, "in spite of the configuration", within); err != nil {
		h.t.Errorf("a broken configuration breaks a connection: %v", err)
	}
	h.write("etc/weir/weir.yaml", string(good))
}
