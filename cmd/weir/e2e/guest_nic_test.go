package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/weirlb/weir/perf/netlab"
)

// modes are the attach modes that each driver grants, from a release of Linux on; the first
// entry that the kernel has counts.
var modes = map[string][]struct {
	since release
	mode  string
}{
	"virtio_net": {{release{5, 9}, "native"}},
	"e1000e":     {{release{5, 9}, "generic"}},
	"vmxnet3":    {{release{6, 6}, "native"}, {release{5, 9}, "generic"}},
	"igb":        {{release{6, 14}, "zerocopy"}, {release{5, 10}, "native"}},
}

// needNICs skips the test without emulated NICs.
func needNICs(t *testing.T) {
	t.Helper()
	if os.Getenv(netlab.NICs) == "" {
		t.Skip("skipped: no NICs (", netlab.NICs, "): run this by make test-vm")
	}
}

// nicQueues is the number of queues that each NIC is to have; 0: a single queue, or those that
// the driver does not change.
func nicQueues(t *testing.T) int {
	t.Helper()
	text := os.Getenv("WEIR_NIC_QUEUES")
	if text == "" {
		return 0
	}
	n, err := strconv.Atoi(text)
	must(t, err)
	return n
}

// exchange sends both protocols in both families both ways, to an endpoint behind a NIC and
// to one behind the kernel.
func (f *fixture) exchange(t *testing.T) {
	t.Helper()
	f.checkChecksums(t)
	for _, s := range []service{toAttached, toPod} {
		t.Run(s.name, func(t *testing.T) {
			bothFamilies(t, func(t *testing.T, six bool) {
				f.checkTransfers(t, s, six, 1<<20)
				f.checkEcho(t, s, six, 1, 1400)
				f.checkEcho(t, s, six, 1000, 1050)
			})
		})
	}
	if t.Failed() {
		t.Log(f.whatWasDropped())
	}
}

// A NIC is attached in the mode that its driver has, traffic passes both ways, also after a
// flap of the link, and offloads are as before when Weir has ended.
func TestGuestNICTraffic(t *testing.T) {
	needNICs(t)
	f := ownFixture(t, options{services: []service{toAttached, toPod}, edge: netlab.EdgeConfig{Queues: nicQueues(t)}, stopped: true})
	before, err := netlab.StateOf(f.Edge.Edge)
	must(t, err)
	must(t, f.start())
	status, err := f.admin.Status(inTime(t, within))
	must(t, err)
	for _, name := range []string{"eth0", "eth1"} {
		i := interfaceOf(status, name)
		if i == nil {
			t.Fatalf("%s is not attached", name)
		}
		want := ""
		for _, m := range modes[i.Driver] {
			if want == "" && runningRelease(t).has(m.since) {
				want = m.mode
			}
		}
		if i.Mode != want || i.BoundQueues != i.Queues {
			t.Errorf("%s (%s): mode %s, %d of %d queues, want %q: %s", name, i.Driver, i.Mode, i.BoundQueues, i.Queues, want, f.logTail())
		}
		t.Logf("%s: %s, %s, checksums by %s, several buffers %v", name, i.Driver, i.Mode, i.TxChecksum, i.MultiBuffer)
	}
	t.Run("attached", f.exchange)
	t.Run("link flap", func(t *testing.T) {
		for _, side := range []struct {
			n    *netlab.Namespace
			name string
		}{{f.Edge.Edge, "eth1"}, {f.Fabric, "edge"}} {
			f.flap(t, side.n, side.name)
			f.exchange(t)
		}
	})
	must(t, f.weir.Stop(within))
	for ctx := inTime(t, within); ; time.Sleep(100 * time.Millisecond) {
		after, err := netlab.StateOf(f.Edge.Edge)
		must(t, err)
		left := differences(before, after)
		if len(left) == 0 {
			return
		}
		if ctx.Err() != nil { // until then the driver may bring the link up again
			t.Fatalf("left behind:\n%s", strings.Join(left, "\n"))
		}
	}
}

// differences are those of offloads and links: a flap of a link also clears addresses and
// routes, which Weir has no part in.
func differences(before, after netlab.State) []string {
	var list []string
	for _, d := range before.Diff(after) {
		if strings.Contains(d, " offload ") || strings.Contains(d, " link ") {
			list = append(list, d)
		}
	}
	return list
}

// flap sets an interface down and up, and waits for the carrier.
func (f *fixture) flap(t *testing.T, n *netlab.Namespace, name string) {
	t.Helper()
	must(t, n.SetSysctl("net/ipv6/conf/"+name+"/keep_addr_on_down", "1"))
	l, err := n.Interface(name)
	must(t, err)
	must(t, n.Netlink().LinkSetDown(l))
	must(t, n.Netlink().LinkSetUp(l))
	must(t, f.poll(func(context.Context) error {
		l, err := n.Interface(name)
		if err == nil && l.Attrs().OperState != netlink.OperUp {
			err = fmt.Errorf("%s is %s", name, l.Attrs().OperState)
		}
		return err
	}))
}

// Jumbo frames pass; or, before Linux 6.6, Weir warns of the MTU; or, before 5.18, it names
// the MTU and does not start.
func TestGuestJumboFrames(t *testing.T) {
	f := ownFixture(t, options{services: []service{toAttached, toPod}, edge: netlab.EdgeConfig{MTU: 9000}, stopped: true})
	const text = "its MTU is 9000, and packets of more than"
	stdout, stderr, exit := f.check(t)
	switch running := runningRelease(t); {
	case running.has(release{6, 6}):
		must(t, f.start())
		f.exchange(t)
		bothFamilies(t, func(t *testing.T, six bool) { f.checkEcho(t, toAttached, six, 8900, 8950) })
	case running.has(release{5, 18}):
		must(t, f.start())
		status, err := f.admin.Status(inTime(t, within))
		must(t, err)
		if !strings.Contains(strings.Join(status.Warnings, "\n"), text) || exit != 0 || !strings.Contains(stdout, text) {
			t.Errorf("no warning of the MTU in %q, nor in\n%s%s", status.Warnings, stdout, stderr)
		}
		bothFamilies(t, func(t *testing.T, six bool) { f.checkEcho(t, toAttached, six, 1, 3000) })
	default:
		if err := f.start(); err == nil || !strings.Contains(err.Error(), "before Linux 5.18 lower theirs") {
			t.Errorf("weir run does not name the MTU: %v", err)
		}
		if exit != 1 || !strings.Contains(stderr, text) {
			t.Errorf("weir check: exit status %d\n%s%s", exit, stdout, stderr)
		}
	}
}

// Weir follows the number of queues of a running NIC.
func TestGuestNICQueues(t *testing.T) {
	needNICs(t)
	f := ownFixture(t, options{services: []service{toAttached, toPod}, extra: "workers: {count: 2}\n"})
	for _, queues := range []int{2, 1} {
		if err := f.Edge.Edge.SetQueues("eth1", queues); err != nil {
			t.Skip("skipped: the driver does not change the number of queues: ", err)
		}
		must(t, f.poll(func(ctx context.Context) error {
			s, err := f.admin.Status(ctx)
			if err != nil {
				return err
			}
			if i := interfaceOf(s, "eth1"); i == nil || i.Queues != queues || i.BoundQueues != queues {
				return fmt.Errorf("eth1 has %d queues, and status says %+v", queues, i)
			}
			return nil
		}))
		f.exchange(t)
	}
}

// A NIC whose driver is unbound is gone; when it is bound again, Weir attaches to it again.
func TestGuestNICUnbind(t *testing.T) {
	needNICs(t)
	f := ownFixture(t, options{services: []service{toAttached, toPod}})
	f.exchange(t)
	var device, driver string
	must(t, f.Edge.Edge.Inside(func() (err error) {
		if device, err = filepath.EvalSymlinks("/sys/class/net/eth1/device"); err == nil {
			driver, err = filepath.EvalSymlinks(device + "/driver")
		}
		return err
	}))
	link, err := f.Edge.Edge.Interface("eth1")
	must(t, err)
	must(t, os.WriteFile(driver+"/unbind", []byte(filepath.Base(device)), 0o200))
	f.absent(t, "eth1")
	t.Run("without it", func(t *testing.T) {
		bothFamilies(t, func(t *testing.T, six bool) { f.checkEcho(t, toPod, six, 1, 1400) })
	})
	must(t, os.WriteFile(driver+"/bind", []byte(filepath.Base(device)), 0o200))
	must(t, netlab.TakeNIC(netlab.End{Namespace: f.Edge.Edge, Name: "eth1", Addrs: onNetwork(netlab.FabricNet, 1)},
		link.Attrs().HardwareAddr, netlab.LinkConfig{}))
	f.attachedTo(t, "eth1", f.indexOf(t, "eth1"))
	f.exchange(t)
}
