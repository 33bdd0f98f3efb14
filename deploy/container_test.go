package deploy

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/perf/netlab"
	"github.com/weirlb/weir/perf/netlab/labtest"
	"github.com/weirlb/weir/perf/netlab/patience"
	"github.com/weirlb/weir/perf/netlab/workload"
)

// within is how long anything may take that takes a fraction of a second when
// the machine is idle.
var within = patience.For(30 * time.Second)

// containerd's own limit is that of systemd's services.
const containerMemlock = 8 << 20

// podSpec is the pod of the kustomize base, which a test of the chart holds
// equal to the chart's.
func podSpec(t *testing.T) *corev1.PodSpec {
	t.Helper()
	data, err := os.ReadFile("kustomize/base/daemonset.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var ds appsv1.DaemonSet
	if err := yaml.UnmarshalStrict(data, &ds); err != nil {
		t.Fatal(err)
	}
	return &ds.Spec.Template.Spec
}

// node is the edge node of a lab with a kubelet's view of a pod.
type node struct {
	*netlab.Edge
	t   *testing.T
	log string
}

func newNode(t *testing.T) *node {
	t.Helper()
	labtest.Require(t)
	weir(t)
	lab, err := netlab.NewEdge(netlab.EdgeConfig{})
	if err != nil {
		t.Fatal(err)
	}
	n := &node{Edge: lab, t: t, log: filepath.Join(lab.Dir(), "weir.log")}
	t.Cleanup(func() {
		if t.Failed() {
			b, _ := os.ReadFile(n.log)
			t.Logf("weir said:\n%s", b)
		}
		if err := lab.Close(); err != nil {
			t.Error(err)
		}
	})
	for _, dir := range []string{"root", "config", "run", "state"} {
		if err := os.Mkdir(filepath.Join(lab.Dir(), dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return n
}

// configure writes the ConfigMap.
func (n *node) configure(files map[string]string) {
	n.t.Helper()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(n.Dir(), "config", name), []byte(text), 0o644); err != nil {
			n.t.Fatal(err)
		}
	}
}

// container is the sandbox that a runtime makes for the pod's container.
func (n *node) container(spec *corev1.PodSpec) *sandbox {
	n.t.Helper()
	c := spec.Containers[0]
	s := &sandbox{
		Root: filepath.Join(n.Dir(), "root"), Binary: weir(n.t), Args: c.Args,
		NoNewPrivs: !*c.SecurityContext.AllowPrivilegeEscalation,
		ReadOnly:   *c.SecurityContext.ReadOnlyRootFilesystem,
		Memlock:    containerMemlock,
		Seccomp:    spec.SecurityContext.SeccompProfile.Type == corev1.SeccompProfileTypeRuntimeDefault,
	}
	for _, a := range c.SecurityContext.Capabilities.Add {
		s.Capabilities = append(s.Capabilities, string(a))
	}
	for _, e := range c.Env {
		if e.ValueFrom != nil {
			e.Value = map[string]string{"spec.nodeName": "edge-1", "metadata.namespace": namespace}[e.ValueFrom.FieldRef.FieldPath]
		}
		s.Env = append(s.Env, e.Name+"="+e.Value)
	}
	for _, m := range c.VolumeMounts {
		s.Mounts = append(s.Mounts, mount{From: n.volume(spec, m.Name), To: m.MountPath, ReadOnly: m.ReadOnly})
	}
	return s
}

// argsOf are the pod's arguments for another command.
func argsOf(command string, args []string) []string {
	return append([]string{command}, args[1:]...)
}

// volume is where a volume lies. Weir's own directories are the lab's.
func (n *node) volume(spec *corev1.PodSpec, name string) string {
	for _, v := range spec.Volumes {
		switch {
		case v.Name != name:
		case v.ConfigMap != nil:
			return filepath.Join(n.Dir(), "config")
		case v.HostPath.Path == "/run/weir":
			return filepath.Join(n.Dir(), "run")
		case v.HostPath.Path == "/var/lib/weir":
			return filepath.Join(n.Dir(), "state")
		default:
			return v.HostPath.Path
		}
	}
	n.t.Fatalf("there is no volume %s", name)
	return ""
}

// start runs the container on the edge node.
func (n *node) start(s *sandbox) *netlab.Process {
	n.t.Helper()
	self, err := os.Executable()
	if err != nil {
		n.t.Fatal(err)
	}
	log, err := os.Create(n.log)
	if err != nil {
		n.t.Fatal(err)
	}
	defer log.Close()
	cmd := exec.Command(self)
	cmd.Env = []string{s.variable()}
	cmd.Stdout, cmd.Stderr = log, log
	p, err := n.Edge.Edge.Start(cmd)
	if err != nil {
		n.t.Fatal(err)
	}
	return p
}

// refusal runs a container that is not to come up, and returns what it says.
func (n *node) refusal(s *sandbox) string {
	n.t.Helper()
	p := n.start(s)
	select {
	case <-p.Done():
	case <-time.After(within):
		n.t.Fatal("it runs")
	}
	out, err := os.ReadFile(n.log)
	if err != nil {
		n.t.Fatal(err)
	}
	if p.ExitCode() != 1 {
		n.t.Errorf("exit status %d, want 1", p.ExitCode())
	}
	return string(out)
}

// status waits until Weir is synced.
func (n *node) status(p *netlab.Process) *api.Status {
	n.t.Helper()
	client := api.NewClient(filepath.Join(n.Dir(), "run", "weir.sock"))
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	for {
		s, err := client.Status(ctx)
		if err == nil && s.Synced {
			return s
		}
		select {
		case <-p.Done():
			n.t.Fatalf("weir run has ended: %v", p.Err())
		case <-ctx.Done():
			n.t.Fatalf("weir run does not sync: %v", err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

const nodeConfig = `
apiVersion: weir.dev/v1alpha1
kind: WeirConfiguration
discovery: {manifests: {path: /etc/weir/services.yaml}}
interfaces: [{name: eth0}, {name: eth1}]
nodePortAddresses: [%s/32]
conntrack: {maxFlows: 65536}
drain: {notReadySeconds: 0, timeoutSeconds: 0}
`

// Endpoints of the lab: each is reached in another way, so that together they
// need all that Weir does to a node.
var reach = []struct {
	name     string
	address  netip.Addr
	nodePort uint16
}{
	{"straight out of an attached interface", netlab.Host4(netlab.FabricNet, 11), 30081},
	{"through the host veth, behind a bridge", netlab.Host4(netlab.PodNet, 2), 30082},
	{"through the host veth and masquerading, behind a VXLAN", netlab.Host4(netlab.RemoteNet, 2), 30083},
}

// serve starts a server at every endpoint and returns manifests with a Service
// for each.
func (n *node) serve() string {
	n.t.Helper()
	var b bytes.Buffer
	for i, ns := range []*netlab.Namespace{n.ZoneA, n.Pod, n.Remote} {
		s, err := workload.Serve(ns, reach[i].name, "[::]:8080")
		if err != nil {
			n.t.Fatal(err)
		}
		n.OnClose(s.Close)
		fmt.Fprintf(&b, `
apiVersion: v1
kind: Service
metadata: {namespace: default, name: s%[1]d}
spec: {type: NodePort, ports: [{port: 80, nodePort: %[2]d}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: default, name: s%[1]d, labels: {kubernetes.io/service-name: s%[1]d}}
addressType: IPv4
ports: [{port: 8080}]
endpoints: [{addresses: ["%[3]s"]}]
---
`, i, reach[i].nodePort, reach[i].address)
	}
	e, err := workload.ServeEcho(n.ZoneA, reach[0].name, "[::]:7")
	if err != nil {
		n.t.Fatal(err)
	}
	n.OnClose(e.Close)
	fmt.Fprintf(&b, `
apiVersion: v1
kind: Service
metadata: {namespace: default, name: echo}
spec: {type: NodePort, ports: [{port: 7, nodePort: %d, protocol: UDP}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: default, name: echo, labels: {kubernetes.io/service-name: echo}}
addressType: IPv4
ports: [{port: 7, protocol: UDP}]
endpoints: [{addresses: ["%s"]}]
`, echoPort, reach[0].address)
	return b.String()
}

// echoPort is the node port of a UDP Service.
const echoPort = 30084

// download asks for bytes through a node port.
func (n *node) download(port uint16) error {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	t := &workload.Transfer{Namespace: n.Client, Target: netip.AddrPortFrom(netlab.Host4(netlab.ClientNet, 1), port), Bytes: 1 << 20, Seed: 1}
	return t.Download(ctx)
}

// confined checks that the sandbox is none in name only.
func (n *node) confined(p *netlab.Process, c *sandbox) {
	n.t.Helper()
	var mask uint64
	for _, name := range c.Capabilities {
		mask |= 1 << capabilities[name]
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.Cmd.Process.Pid))
	if err != nil {
		n.t.Fatal(err)
	}
	for _, line := range []string{fmt.Sprintf("CapEff:\t%016x", mask), fmt.Sprintf("CapBnd:\t%016x", mask), "NoNewPrivs:\t1", "Seccomp:\t2"} {
		if !strings.Contains(string(status), "\n"+line+"\n") {
			n.t.Errorf("the process has not %q:\n%s", line, status)
		}
	}
}

// The pod's few rights are enough to start and to reach every kind of endpoint,
// with nothing missing that Weir would do with more.
func TestWireContainerServesWithThePodsRights(t *testing.T) {
	n := newNode(t)
	n.configure(map[string]string{
		"weir.yaml":     fmt.Sprintf(nodeConfig, netlab.Host4(netlab.ClientNet, 1)),
		"services.yaml": n.serve(),
	})
	c := n.container(podSpec(t))
	p := n.start(c)
	s := n.status(p)
	n.confined(p, c)
	for _, r := range reach {
		if err := n.download(r.nodePort); err != nil {
			t.Errorf("%s: %v", r.name, err)
		}
	}
	for _, i := range s.Interfaces {
		if !i.Pinned {
			t.Errorf("%s: the program's link is not pinned", i.Name)
		}
		if i.Mode != "native" {
			t.Errorf("%s: mode %s", i.Name, i.Mode)
		}
	}
	for _, w := range s.Warnings {
		if !strings.Contains(w, "switched off") { // offloads of the lab's devices
			t.Errorf("warning: %s", w)
		}
	}
	if err := p.Stop(within); err != nil {
		t.Fatal(err)
	}
	said, err := os.ReadFile(n.log)
	if err != nil {
		t.Fatal(err)
	}
	for _, refused := range []string{unix.EPERM.Error(), unix.EACCES.Error(), unix.EROFS.Error()} {
		if strings.Contains(string(said), refused) {
			t.Errorf("something was refused: %s", refused)
		}
	}
	if p.ExitCode() != 0 {
		t.Errorf("exit status %d", p.ExitCode())
	}
}
