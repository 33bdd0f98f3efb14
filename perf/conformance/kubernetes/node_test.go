package kubernetes

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/perf/netlab"
)

func nodeName(i int) string { return fmt.Sprint("node", i+1) }

// podNet is the network of the Pods of a node.
func podNet(i int) string { return fmt.Sprintf("10.244.%d", i+1) }

// guard drops what kube-proxy would serve of the connections that arrive from outside of the node. A packet that
// Weir serves does not get there.
const guard = `table inet guard {
  chain forward { type filter hook forward priority -10; iifname "eth0" ct direction original ct status dnat counter drop; }
  chain input { type filter hook input priority -10; iifname "eth0" ct direction original ct status dnat counter drop; }
}
`

// node starts containerd, the kubelet and kube-proxy of a node.
func (b *bed) node(i int, images string) {
	b.t.Helper()
	n, dir := b.Nodes[i], b.path(nodeName(i))
	must(b.t, os.MkdirAll(dir, 0o755))
	must(b.t, n.Inside(ownFiles))
	must(b.t, n.SetSysctl("net/ipv4/ip_forward", "1"))
	b.run(n, guard, "nft", "-f", "-")
	for j := range nodeCount {
		if j != i {
			b.run(n, "", "ip", "route", "add", podNet(j)+".0/24", "via", netlab.Host4(netlab.FleetNet, uint8(netlab.FleetFirstNode+j)).String())
		}
	}
	b.run(b.Router, "", "ip", "route", "add", podNet(i)+".0/24", "via", netlab.Host4(netlab.FleetNet, uint8(netlab.FleetFirstNode+i)).String())
	b.write(nodeName(i)+"/cni/10-bridge.conflist", fmt.Sprintf(`{"cniVersion": "0.4.0", "name": "pods", "plugins": [{"type": "bridge", "bridge": "cni0",
 "isGateway": true, "hairpinMode": true, "ipam": {"type": "host-local", "dataDir": "%s/ipam", "ranges": [[{"subnet": "%s.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}}]}
`, dir, podNet(i)))
	runtime := b.daemon(n, "containerd", "--config", b.write(nodeName(i)+"/containerd.toml", fmt.Sprintf(`version = 2
root = "%[1]s/containerd"
state = "%[1]s/containerd-state"
[grpc]
  address = "%[1]s/cri.sock"
[ttrpc]
  address = "%[1]s/cri.ttrpc"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "%[2]s"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "%[1]s/cni"
`, dir, pauseImage)))
	b.until(runtime, "containerd", func(context.Context) error {
		_, err := os.Stat(filepath.Join(dir, "cri.sock"))
		return err
	})
	b.run(n, "", "ctr", "--address", filepath.Join(dir, "cri.sock"), "--namespace", "k8s.io", "images", "import", images)
	address := netlab.Host4(netlab.FleetNet, uint8(netlab.FleetFirstNode+i)).String()
	kubelet := b.kubernetes(n, "kubelet", "--kubeconfig="+b.kubeconfig(), "--hostname-override="+nodeName(i), "--node-ip="+address,
		"--root-dir="+filepath.Join(dir, "kubelet"), "--cert-dir="+filepath.Join(dir, "pki"), "--config="+b.write(nodeName(i)+"/kubelet.yaml", b.kubeletConfig(dir)))
	b.until(kubelet, "kubelet", healthy(n, "http://127.0.0.1:10248/healthz"))
	proxy := b.kubernetes(n, "kube-proxy", "--kubeconfig="+b.kubeconfig(), "--hostname-override="+nodeName(i), "--proxy-mode=nftables",
		"--cluster-cidr="+clusterCIDR, "--conntrack-max-per-core=0", "--conntrack-tcp-timeout-established=0", "--conntrack-tcp-timeout-close-wait=0")
	b.until(proxy, "kube-proxy", healthy(n, "http://127.0.0.1:10256/healthz"))
}

// kubeletConfig has no cgroups of its own: three nodes share those of the machine.
func (b *bed) kubeletConfig(dir string) string {
	return fmt.Sprintf(`apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
containerRuntimeEndpoint: unix://%[1]s/cri.sock
failCgroupV1: false
cgroupDriver: cgroupfs
cgroupsPerQOS: false
enforceNodeAllocatable: []
failSwapOn: false
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
clusterDNS: [%[2]s]
clusterDomain: %[3]s
resolvConf: ""
podLogsDir: %[1]s/pods
volumePluginDir: %[1]s/plugins
evictionHard: {memory.available: 1Mi}
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
`, dir, netlab.Host4(netlab.FleetNet, netlab.FleetServer), domain)
}

// settings are those of the machine that a kubelet wants to change. It reads them as it wants them from files in their
// place: the machine's stay as they are.
var settings = map[string]string{
	"vm/overcommit_memory": "1", "vm/panic_on_oom": "0", "kernel/panic": "10", "kernel/panic_on_oops": "1",
	"kernel/keys/root_maxkeys": "1000000", "kernel/keys/root_maxbytes": "25000000",
}

// fixed are directories that runtime and kubelet write to, whatever their configuration.
var fixed = []string{"/run", "/var/log", "/var/lib/cni", "/var/lib/kubelet"}

// makeFixed makes the missing ones, until the test ends.
func makeFixed(t *testing.T) {
	for _, dir := range fixed {
		if _, err := os.Stat(dir); errors.Is(err, os.ErrNotExist) {
			must(t, os.MkdirAll(dir, 0o755))
			t.Cleanup(func() { _ = os.Remove(dir) }) // another may use it now
		}
	}
}

// ownFiles gives the mount namespace of a node the fixed directories and the settings.
func ownFiles() error {
	for _, dir := range fixed {
		if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=0755"); err != nil {
			return fmt.Errorf("mount %s: %w", dir, err)
		}
	}
	for key, value := range settings {
		file := filepath.Join("/run/settings", key)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(file, []byte(value+"\n"), 0o644); err != nil {
			return err
		}
		if err := unix.Mount(file, filepath.Join("/proc/sys", key), "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("mount %s: %w", key, err)
		}
	}
	return nil
}

// cgroups are those of all containers of the machine's containerds, each before the one that it is in.
func cgroups() (out []string) {
	for _, pattern := range []string{"/sys/fs/cgroup/k8s.io/*", "/sys/fs/cgroup/*/k8s.io/*", "/sys/fs/cgroup/k8s.io", "/sys/fs/cgroup/*/k8s.io"} {
		dirs, _ := filepath.Glob(pattern) // the pattern is right
		for _, dir := range dirs {
			if info, err := os.Stat(dir); err == nil && info.IsDir() {
				out = append(out, dir)
			}
		}
	}
	return out
}

// endShims ends the shims of the nodes' containerds, which outlive them with their containers.
func (b *bed) endShims() {
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline") // the pattern is right
	for _, f := range files {
		line, err := os.ReadFile(f)
		if err != nil || !bytes.Contains(line, []byte("containerd-shim")) || !bytes.Contains(line, []byte(b.Dir()+"/")) {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(f))); err == nil {
			_ = unix.Kill(pid, unix.SIGKILL) // it may have ended
		}
	}
}

// removeCgroups removes those that the test has left behind, with their processes, when the nodes are gone.
func removeCgroups(t *testing.T) {
	before := cgroups()
	t.Cleanup(func() {
		for _, dir := range cgroups() {
			for try := 0; try < 100 && !slices.Contains(before, dir) && !gone(dir); try++ {
				time.Sleep(20 * time.Millisecond) // processes end
			}
		}
	})
}

// gone ends the processes of a cgroup, and reports whether it could be removed.
func gone(dir string) bool {
	text, _ := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	for _, field := range strings.Fields(string(text)) {
		if pid, err := strconv.Atoi(field); err == nil {
			_ = unix.Kill(pid, unix.SIGKILL) // it may have ended
		}
	}
	return !errors.Is(os.Remove(dir), unix.EBUSY) // files of a cgroup do not count
}
