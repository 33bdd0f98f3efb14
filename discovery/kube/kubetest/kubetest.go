// Package kubetest gives tests a real API server with the real endpoint
// controllers: the command kubeenv, which `make kubeenv` builds, named by
// KUBEENV_BIN. It also is the kubelet that this cluster does not have.
package kubetest

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// Options adapt a Cluster.
type Options struct {
	Authz string        // AlwaysAllow ("") or RBAC
	Batch time.Duration // of the endpoint controllers
	// NoEndpoints leaves out the controller of legacy Endpoints.
	NoEndpoints bool
	// NoControllers leaves out all of them: nobody makes slices.
	NoControllers bool
	// Deployments adds the controllers of Deployments and ReplicaSets. The test runs the Pods.
	Deployments bool
	// Fast takes the API server's limits of requests away, for load.
	Fast bool
	// Args are more flags of kube-apiserver.
	Args []string
}

// Cluster is a running control plane. Nothing schedules and runs Pods: see
// RunPod.
type Cluster struct {
	Kubeconfig string
	Server     string // https://127.0.0.1:PORT
	Seconds    float64

	dir  string
	opts Options
	port string
	cmd  *exec.Cmd
	in   io.Closer
}

// StartWithin is for a busy machine: a start takes 2 seconds on an idle machine. See Within for
// an emulated machine.
var StartWithin = 5 * time.Minute

// Require is a Cluster for this test alone. Without KUBEENV_BIN the test is
// skipped, or fails where CI=true.
func Require(t testing.TB, o Options) *Cluster {
	t.Helper()
	if os.Getenv("KUBEENV_BIN") == "" {
		const why = "KUBEENV_BIN is not set: run make test-kube, which builds the test cluster"
		if os.Getenv("CI") == "true" {
			t.Fatal(why)
		}
		t.Skip("skipped: ", why)
	}
	if testing.Short() {
		t.Skip("skipped: -short")
	}
	c, err := Start(t.TempDir(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the control plane's log ends so:\n%s", c.LogTail(20))
		}
		c.Stop()
	})
	return c
}

// Start starts a Cluster whose state is in dir.
func Start(dir string, o Options) (*Cluster, error) {
	c := &Cluster{dir: dir, opts: o, port: "0"}
	return c, c.start()
}

func (c *Cluster) start() error {
	args := []string{"-dir", c.dir, "-port", c.port, "-batch", c.opts.Batch.String()}
	if c.opts.Authz != "" {
		args = append(args, "-authz", c.opts.Authz)
	}
	if c.opts.NoControllers {
		args = append(args, "-controllers=false")
	}
	if c.opts.NoEndpoints {
		args = append(args, "-endpoints=false")
	}
	if c.opts.Deployments {
		args = append(args, "-deployments")
	}
	server := slices.Clone(c.opts.Args)
	if c.opts.Fast {
		server = append(server, "--enable-priority-and-fairness=false", "--max-requests-inflight=0", "--max-mutating-requests-inflight=0")
	}
	if len(server) > 0 {
		args = append(args, "-apiserver-args", strings.Join(server, " "))
	}
	log, err := os.OpenFile(c.logFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	c.cmd = exec.Command(os.Getenv("KUBEENV_BIN"), args...)
	c.cmd.Stderr = log
	// It ends at the end of standard input, that is with this process.
	if c.in, err = c.cmd.StdinPipe(); err != nil {
		return err
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := c.cmd.Start(); err != nil {
		return fmt.Errorf("kubeenv: %w", err)
	}
	line := make(chan []byte, 1)
	go func() {
		l, _ := bufio.NewReader(out).ReadBytes('\n')
		line <- l
	}()
	var ready struct {
		Kubeconfig, Server string
		Seconds            float64
	}
	select {
	case l := <-line:
		err = json.Unmarshal(l, &ready)
	case <-time.After(StartWithin):
		err = errors.New("not ready in time")
	}
	if err != nil {
		c.Stop()
		return fmt.Errorf("kubeenv: %w\n%s", err, c.LogTail(20))
	}
	c.Kubeconfig, c.Server, c.Seconds = ready.Kubeconfig, ready.Server, ready.Seconds
	c.port = c.Server[strings.LastIndexByte(c.Server, ':')+1:]
	return nil
}

// Stop kills the control plane; the state stays.
func (c *Cluster) Stop() {
	if c.cmd == nil || c.cmd.Process == nil {
		return
	}
	_ = c.cmd.Process.Signal(syscall.SIGKILL)
	_ = c.in.Close()
	_ = c.cmd.Wait() // killed: an error in any case
	c.cmd = nil
}

// Restart starts the control plane again at the same address, with the same state.
func (c *Cluster) Restart() error { return c.start() }

// Port is the API server's port on 127.0.0.1.
func (c *Cluster) Port() string { return c.port }

func (c *Cluster) logFile() string { return filepath.Join(c.dir, "kubeenv.log") }

// LogTail is the end of the control plane's log.
func (c *Cluster) LogTail(lines int) string {
	b, err := os.ReadFile(c.logFile())
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimSpace(string(b)), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// REST is the configuration of the administrator's client.
func (c *Cluster) REST(t testing.TB) *rest.Config {
	t.Helper()
	cfg, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	cfg.QPS = -1
	cfg.ContentType = "application/vnd.kubernetes.protobuf"
	return cfg
}

// Client is the administrator's client.
func (c *Cluster) Client(t testing.TB) kubernetes.Interface {
	t.Helper()
	client, err := kubernetes.NewForConfig(c.REST(t))
	if err != nil {
		t.Fatal(err)
	}
	return client
}
