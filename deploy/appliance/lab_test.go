package appliance

import (
	"context"
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
	drive     string       // image of the drive, "" if none is attached
	worn      bool         // the disk cannot be written from the next start on
	clock     string       // of the hardware at the next start, "" for the right one
	writes    string       // file for a log of the writes to the disk from the next start on, "" for none
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
	l.drive = l.newDrive(t, "drive", nil)
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

// newDrive makes a drive with the configuration, as README.md describes it, and changes to
// weir.yaml: pairs of old and new text.
func (l *lab) newDrive(t *testing.T, name string, change []string) string {
	t.Helper()
	key, err := os.ReadFile(l.at("key.pub"))
	must(t, err)
	yaml := `apiVersion: weir.dev/v1alpha1
kind: WeirConfiguration
nodeName: edge-1
discovery: {manifests: {path: /etc/weir/manifests}}
interfaces: [{name: ` + nic + `}]
nodePortAddresses: [10.77.0.1/32]
conntrack: {maxFlows: 65536}
`
	files := map[string]string{
		"hostname":                "edge-1\n",
		"authorized_keys":         string(key),
		"network/10-lan.network":  "[Match]\nMACAddress=52:54:00:77:00:01\n[Network]\nAddress=10.77.0.1/24\n",
		"network/20-mgmt.network": "[Match]\nMACAddress=52:54:00:77:01:01\n[Network]\nAddress=10.0.2.15/24\n",
		"weir/weir.yaml":          strings.NewReplacer(change...).Replace(yaml),
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
	tree := l.at(name + ".tree")
	for name, text := range files {
		file := filepath.Join(tree, name)
		must(t, os.MkdirAll(filepath.Dir(file), 0o755))
		must(t, os.WriteFile(file, []byte(text), 0o644))
	}
	run(t, "mkfs.vfat", "-n", "WEIR-CONFIG", "-C", l.at(name), "4096")
	run(t, "mcopy", "-s", "-i", l.at(name), filepath.Join(tree, "hostname"), filepath.Join(tree, "authorized_keys"),
		filepath.Join(tree, "network"), filepath.Join(tree, "weir"), "::")
	return l.at(name)
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

// startAppliance switches the appliance on. The drive is a USB stick.
func (l *lab) startAppliance(t *testing.T) {
	t.Helper()
	args := append(l.wire("off", "52:54:00:77:00:01"), forward(l.ssh, "22", "52:54:00:77:01:01")...)
	args = append(args, "-drive", "if=pflash,format=raw,unit=0,readonly=on,file="+firmware,
		"-drive", "if=pflash,format=raw,unit=1,file="+l.at("variables"))
	if l.writes == "" {
		args = append(args, "-blockdev", "driver=file,node-name=disk,filename="+l.at("disk")+map[bool]string{true: ",read-only=on"}[l.worn])
	} else {
		must(t, os.WriteFile(l.writes, nil, 0o600))
		args = append(args, "-blockdev", "driver=blklogwrites,node-name=disk,file.driver=file,file.filename="+l.at("disk")+
			",log.driver=file,log.filename="+l.writes)
	}
	args = append(args, "-device", "virtio-blk-pci,drive=disk,bootindex=0")
	if l.drive != "" {
		args = append(args, "-monitor", "unix:"+l.at("monitor")+",server=on,wait=off", "-device", "qemu-xhci,addr=0x12",
			"-blockdev", "driver=file,node-name=drive,read-only=on,filename="+l.drive, "-device", "usb-storage,drive=drive,id=stick")
	}
	if l.clock != "" {
		args = append(args, "-rtc", "base="+l.clock)
	}
	l.appliance = l.boot(t, "appliance", 1024, args...)
}

// pull takes the drive out of the running machine.
func (l *lab) pull(t *testing.T) {
	t.Helper()
	monitor, err := net.Dial("unix", l.at("monitor"))
	must(t, err)
	defer monitor.Close()
	_, err = io.WriteString(monitor, "device_del stick\n")
	must(t, err)
	eventually(t, func() error {
		return l.answers("test ! -e /dev/disk/by-label/WEIR-CONFIG")
	})
}

// command is a command on the appliance.
func (l *lab) command(words ...string) *exec.Cmd {
	return exec.Command("ssh", append([]string{"-i", l.at("key"), "-p", fmt.Sprint(l.ssh), "-o", "BatchMode=yes",
		"-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "ConnectTimeout=30", "-o", "LogLevel=ERROR",
		"root@127.0.0.1"}, words...)...)
}

// answers returns nil if a command on the appliance succeeds.
func (l *lab) answers(command string) error {
	if out, err := l.command(command).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", command, err, out)
	}
	return nil
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
