package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weirlb/weir/perf/netlab"
)

// run runs the binary on the edge node until it ends, and returns what it
// printed to stderr and its exit status.
func (f *fixture) run(t *testing.T, prepare func(*exec.Cmd), args ...string) (string, int) {
	t.Helper()
	var stderr bytes.Buffer
	cmd := f.command(args...)
	cmd.Stderr = &stderr
	if prepare != nil {
		prepare(cmd)
	}
	p, err := f.Edge.Edge.Start(cmd)
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-p.Done():
	case <-time.After(within):
		t.Errorf("weir %s is still running", strings.Join(args, " "))
		p.Kill()
	}
	return stderr.String(), p.ExitCode()
}

// What is wrong at the start is said in one line that names what and where.
func TestWireWrongStart(t *testing.T) {
	f := ownFixture(t, options{services: []service{toAttached}, stopped: true})
	config, err := os.ReadFile(f.path("config.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name     string
		old, new string // in the configuration
		prepare  func(*exec.Cmd)
		want     []string // in the line
	}{
		{name: "unknown field", old: "nodeName:", new: "nodeNome:", want: []string{"config.yaml", "nodeNome"}},
		{name: "missing interface", old: "name: eth1", new: "name: eth9", want: []string{"eth9"}},
		{name: "interface named twice", old: "name: eth1", new: "name: eth0", want: []string{"eth0"}},
		{name: "prefix of no interface", old: "name: eth1", new: "cidr: 198.51.100.0/24",
			want: []string{"interfaces[1].cidr", "198.51.100.0/24", "eth1 " + netlab.Host4(netlab.FabricNet, 1).String()}},
		{name: "interface named and found", old: "name: eth1", new: "defaultRoute: true, mode: generic", want: []string{"interfaces[1]", "eth0", "interfaces[0]"}},
		{name: "no such mode", old: "name: eth1", new: "name: eth1, mode: fast", want: []string{"mode", "fast"}},
		{name: "mode not granted", old: "name: eth1", new: "name: eth1, mode: zerocopy", want: []string{"eth1", "zero"}},
		{name: "loopback", old: "name: eth1", new: "name: lo", want: []string{"lo"}},
		{name: "no root", want: []string{"root"}, prepare: func(cmd *exec.Cmd) {
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			state, err := netlab.StateOf(f.Edge.Edge)
			if err != nil {
				t.Fatal(err)
			}
			file := f.path("wrong.yaml")
			content := bytes.Replace(config, []byte(c.old), []byte(c.new), 1)
			if err := os.WriteFile(file, bytes.ReplaceAll(content, []byte("weir.sock"), []byte("wrong.sock")), 0o644); err != nil {
				t.Fatal(err)
			}
			if c.name == "unknown field" {
				c.want[0] = "wrong.yaml"
			}
			out, code := f.run(t, c.prepare, "run", "--config", file)
			if code != 1 && code != 2 {
				t.Errorf("exit status %d", code)
			}
			if errorLines(out) != 1 {
				t.Errorf("want one line, got\n%s", out)
			}
			for _, w := range c.want {
				if !strings.Contains(out, w) {
					t.Errorf("%q does not name %s", out, w)
				}
			}
			after, err := netlab.StateOf(f.Edge.Edge)
			if err != nil {
				t.Fatal(err)
			}
			if left := state.Diff(after); len(left) > 0 {
				t.Errorf("a start that failed left behind:\n%s", strings.Join(left, "\n"))
			}
		})
	}
}

// errorLines counts the lines of `weir: ...`; what else is on stderr is the
// log of a start that got further.
func errorLines(out string) int {
	n := 0
	for line := range strings.Lines(out) {
		if strings.HasPrefix(line, "weir: ") {
			n++
		}
	}
	return n
}

// A malformed manifest is reported, and everything goes on as it was.
func TestWireMalformedManifestKeepsServing(t *testing.T) {
	f := ownFixture(t, options{services: kinds})
	good := render(t, kinds)
	for name, bad := range map[string][]byte{
		"not YAML":     []byte("apiVersion: v1\nkind: Service\n\tmetadata: {name: attached, namespace: test}\n"),
		"wrong type":   bytes.Replace(good, []byte("port: 80\n"), []byte("port: eighty\n"), 1),
		"bad address":  bytes.Replace(good, []byte("10.20.0.11"), []byte("10.20.0.311"), 1),
		"cut short":    append(bytes.Clone(good), []byte("\n---\nspec: {ports: [\n")...),
		"only garbage": {0, 1, 2, 0xff, 0xfe},
	} {
		t.Run(name, func(t *testing.T) {
			if bytes.Equal(bad, good) {
				t.Fatal("nothing is wrong with it")
			}
			replace(t, f.manifest(), bad)
			if err := f.poll(func(ctx context.Context) error {
				status, err := f.admin.Status(ctx)
				if err == nil && len(status.Discovery.Errors) == 0 {
					err = errors.New("no error is shown")
				}
				if err == nil && !strings.Contains(strings.Join(status.Discovery.Errors, " "), "services.yaml") {
					err = fmt.Errorf("%q does not name the file", status.Discovery.Errors)
				}
				return err
			}); err != nil {
				t.Error(err)
			}
			for _, s := range kinds {
				f.checkLoad(t, f.Client, s.at(httpPort, false), 3)
				f.checkLoad(t, f.Client, s.atNode(httpPort, true), 3)
			}
			replace(t, f.manifest(), good)
			if err := f.poll(func(ctx context.Context) error {
				status, err := f.admin.Status(ctx)
				if err == nil && len(status.Discovery.Errors) > 0 {
					err = fmt.Errorf("still shown: %q", status.Discovery.Errors)
				}
				return err
			}); err != nil {
				t.Error(err)
			}
		})
	}
}

// A manifest cannot take the ports by which the node is repaired.
func TestWireProtectedPortStaysTheKernels(t *testing.T) {
	ssh := service{name: "ssh", index: 21, endpoints: []endpoint{attached},
		lb: []netip.Addr{netlab.Host4(netlab.ClientNet, 1), netlab.Host6(netlab.ClientNet, 1)}}
	f := ownFixture(t, options{services: []service{toAttached}, extra: "protectedPorts: [80, 22]"})
	manifest := append(render(t, []service{toAttached}), render(t, []service{ssh})...)
	replace(t, f.manifest(), manifest)
	l, err := f.Edge.Edge.Listen("tcp", "[::]:80")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			fmt.Fprint(c, "the node itself")
			c.Close()
		}
	}()
	// The Service's other ports on the node's own address are taken.
	if err := f.poll(func(context.Context) error {
		c, err := f.Client.DialContext(inTime(t, time.Second), "tcp", ssh.at(halfPort, false).String())
		if err == nil {
			c.Close()
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	bothFamilies(t, func(t *testing.T, six bool) {
		c, err := f.Client.DialContext(inTime(t, within), "tcp", ssh.at(httpPort, six).String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		got := make([]byte, 64)
		n, err := c.Read(got)
		if string(got[:n]) != "the node itself" {
			t.Errorf("answered %q, %v", got[:n], err)
		}
	})
}
