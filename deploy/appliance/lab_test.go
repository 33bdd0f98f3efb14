package appliance

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weirlb/weir/perf/netlab/labtest"
	"github.com/weirlb/weir/perf/vm"
)

// lab is an appliance and a client on a network, each a virtual machine.
type lab struct {
	dir    string // disk, drive, keys
	image  string // folder of make appliance
	ssh    int    // port of this machine that leads to the appliance's SSH server
	client int    // and to the client

	appliance *machine
	slot      string       // that was confirmed last
	atEnd     func(func()) // the machines outlive the step that starts them
}

// firmware is where Debian's package ovmf has the UEFI firmware, and an empty store of
// variables.
const firmware, variables = "/usr/share/OVMF/OVMF_CODE_4M.fd", "/usr/share/OVMF/OVMF_VARS_4M.fd"

// nic is the name that udev gives to the NIC of the appliance at PCI slot 16.
const nic = "enp0s16"

func newLab(t *testing.T) *lab {
	t.Helper()
	l := &lab{dir: t.TempDir(), image: os.Getenv("WEIR_APPLIANCE"), ssh: freePort(t), client: freePort(t), slot: "slot a", atEnd: t.Cleanup}
	if l.image == "" {
		t.Skip("skipped: no WEIR_APPLIANCE, a folder with an appliance: run this by make test-appliance")
	}
	for _, name := range []string{firmware, variables} {
		if _, err := os.Stat(name); err != nil {
			labtest.Skip(t, err)
		}
	}
	must(t, os.RemoveAll(consoles(t)))
	run(t, "cp", "--sparse=always", filepath.Join(l.image, "weir-appliance.img"), l.at("disk"))
	run(t, "cp", variables, l.at("variables"))
	run(t, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", l.at("key"))
	l.drive(t)
	return l
}

func (l *lab) at(name string) string { return filepath.Join(l.dir, name) }

func freePort(t *testing.T) int {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer listener.Close()
	return listener.Addr().(*net.TCPAddr).Port
}

// drive makes the drive with the configuration, as README.md describes it.
func (l *lab) drive(t *testing.T) {
	t.Helper()
	key, err := os.ReadFile(l.at("key.pub"))
	must(t, err)
	files := map[string]string{
		"hostname":                "edge-1\n",
		"authorized_keys":         string(key),
		"network/10-lan.network":  "[Match]\nMACAddress=52:54:00:77:00:01\n[Network]\nAddress=10.77.0.1/24\n",
		"network/20-mgmt.network": "[Match]\nMACAddress=52:54:00:77:01:01\n[Network]\nAddress=10.0.2.15/24\n",
		"weir/weir.yaml": `apiVersion: weir.dev/v1alpha1
kind: WeirConfiguration
nodeName: edge-1
discovery: {manifests: {path: /etc/weir/manifests}}
interfaces: [{name: ` + nic + `}]
nodePortAddresses: [10.77.0.1/32]
conntrack: {maxFlows: 65536}
`,
		"weir/manifests/web.yaml": `{apiVersion: v1, kind: Node, metadata: {name: edge-1},
 status: {addresses: [{type: InternalIP, address: 10.77.0.1}]}}
---
{apiVersion: v1, kind: Service, metadata: {namespace: default, name: web},
 spec: {type: NodePort, ports: [{name: http, protocol: TCP, port: 80, nodePort: 30080}]}}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, addressType: IPv4,
 metadata: {namespace: default, name: web-1, labels: {kubernetes.io/service-name: web}},
 ports: [{name: http, protocol: TCP, port: 8080}],
 endpoints: [{addresses: [10.77.0.11], conditions: {ready: true}},
             {addresses: [10.77.0.12], conditions: {ready: true}}]}
`,
	}
	tree := l.at("tree")
	for name, text := range files {
		file := filepath.Join(tree, name)
		must(t, os.MkdirAll(filepath.Dir(file), 0o755))
		must(t, os.WriteFile(file, []byte(text), 0o644))
	}
	run(t, "mkfs.vfat", "-n", "WEIR-CONFIG", "-C", l.at("drive"), "4096")
	run(t, "mcopy", "-s", "-i", l.at("drive"), filepath.Join(tree, "hostname"), filepath.Join(tree, "authorized_keys"),
		filepath.Join(tree, "network"), filepath.Join(tree, "weir"), "::")
}

// startClient starts the client. It listens for the wire to the appliance, which may come
// and go.
func (l *lab) startClient(t *testing.T) {
	t.Helper()
	kernel, err := vm.Fetch(context.Background(), "6.12", t.Logf)
	must(t, err)
	cmd := exec.Command("go", "build", "-o", l.at("client"), "./client")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	must(t, kernel.Initramfs(l.at("initrd"), l.at("client"), "virtio_pci", "virtio_net", "virtio_rng"))
	args := l.wire("on", "52:54:00:77:00:02")
	args = append(args, forward(l.client, "8000", "52:54:00:77:01:02")...)
	m := l.boot(t, "client", 512, append(args, "-kernel", kernel.Image, "-initrd", l.at("initrd"),
		"-append", "console=ttyS0 panic=-1 loglevel=4 mitigations=off")...)
	m.says(t, 0, "client: ready")
}

// wire is the appliance's network: a NIC at PCI slot 16.
func (l *lab) wire(listens, mac string) []string {
	return []string{
		"-netdev", "stream,id=lan,server=" + listens + ",addr.type=unix,addr.path=" + l.at("lan"),
		"-device", "virtio-net-pci,netdev=lan,addr=0x10,romfile=,mac=" + mac,
	}
}

// forward is a NIC behind which a port is reached from this machine alone.
func forward(port int, to, mac string) []string {
	return []string{
		"-netdev", fmt.Sprintf("user,id=control,restrict=on,hostfwd=tcp:127.0.0.1:%d-10.0.2.15:%s", port, to),
		"-device", "virtio-net-pci,netdev=control,addr=0x11,romfile=,mac=" + mac,
	}
}

// startAppliance switches the appliance on.
func (l *lab) startAppliance(t *testing.T) {
	t.Helper()
	args := append(l.wire("off", "52:54:00:77:00:01"), forward(l.ssh, "22", "52:54:00:77:01:01")...)
	l.appliance = l.boot(t, "appliance", 1024, append(args,
		"-drive", "if=pflash,format=raw,unit=0,readonly=on,file="+firmware,
		"-drive", "if=pflash,format=raw,unit=1,file="+l.at("variables"),
		"-drive", "if=none,id=disk,format=raw,file="+l.at("disk"), "-device", "virtio-blk-pci,drive=disk,bootindex=0",
		"-drive", "if=none,id=config,format=raw,readonly=on,file="+l.at("drive"), "-device", "virtio-blk-pci,drive=config",
	)...)
}

// wipe writes zeros over a partition of the disk.
func (l *lab) wipe(t *testing.T, partition string) {
	t.Helper()
	out, err := exec.Command("sfdisk", "--json", l.at("disk")).Output()
	must(t, err)
	var disk struct {
		PartitionTable struct {
			Partitions []struct {
				Start, Size int64
				Name        string
			}
		}
	}
	must(t, json.Unmarshal(out, &disk))
	for _, p := range disk.PartitionTable.Partitions {
		if p.Name == partition {
			run(t, "fallocate", "--zero-range", "--offset", fmt.Sprint(p.Start*512), "--length", fmt.Sprint(p.Size*512), l.at("disk"))
			return
		}
	}
	t.Fatalf("the disk has no partition %s", partition)
}

// command is a command on the appliance.
func (l *lab) command(words ...string) *exec.Cmd {
	return exec.Command("ssh", append([]string{"-i", l.at("key"), "-p", fmt.Sprint(l.ssh), "-o", "BatchMode=yes",
		"-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "ConnectTimeout=30", "-o", "LogLevel=ERROR",
		"root@127.0.0.1"}, words...)...)
}

// serves waits until the client gets answers of both endpoints.
func (l *lab) serves(t *testing.T) {
	t.Helper()
	missing := map[string]bool{"web-1": true, "web-2": true}
	eventually(t, func() error {
		answer, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/?url=%s", l.client, url.QueryEscape("http://10.77.0.1:30080/")))
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		text, err := io.ReadAll(answer.Body)
		if err != nil || answer.StatusCode != http.StatusOK {
			return fmt.Errorf("the client's request: %s: %s (%v)", answer.Status, strings.TrimSpace(string(text)), err)
		}
		delete(missing, string(text))
		if len(missing) > 0 {
			return fmt.Errorf("no answer of %v", missing)
		}
		return nil
	})
}
