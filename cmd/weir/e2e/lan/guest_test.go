package lan

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/weirlb/weir/perf/netlab"
	"github.com/weirlb/weir/perf/netlab/patience"
	"github.com/weirlb/weir/perf/netlab/workload"
	"github.com/weirlb/weir/perf/vm"
)

// guestName is that of the node in the virtual machine, beside node1 on this one.
const guestName = "node2"

// A virtual machine owns addresses on a virtio-net NIC. Its Weir is killed, and takes the addresses
// back when it is told to; its power is cut. Each time the other node takes the addresses.
func TestGuestOwnerDies(t *testing.T) {
	if os.Getenv(vm.Variable) == "" {
		t.Skip("skipped: no kernel (", vm.Variable, "): run this by make test-vm")
	}
	b := newBed(t, 1, 8)
	dir := b.write(guestName)
	b.withoutFlowCache(dir)
	m, err := vm.StartNode(t.Context(), b.Switch, guestName)
	must(t, err)
	t.Cleanup(func() { _ = m.Cut() })
	must(t, b.AddPort(guestName))
	run := func(format string, args ...any) {
		t.Helper()
		must(t, m.Run(t.Context(), fmt.Sprintf(format, args...)))
	}
	start := func() { // and take the addresses that are the node's by the hash, however late it has started
		run("/vm/weir run --config %s/config.yaml >>/out/weir.log 2>&1 & weir=$!", dir)
		run("until /vm/weir drain self --undo --admin-socket %s/weir.sock >>/out/undo.log 2>&1; do sleep 0.1; done", dir)
	}
	run("ip link set eth0 up && ip addr add %s/24 dev eth0 && ip addr add %s/64 dev eth0 nodad",
		netlab.Host4(network, firstNode+1), netlab.Host6(network, firstNode+1))
	b.start(0)
	start()
	b.survives("kill -9", func() { run("kill -9 $weir") })
	start()
	b.survives("power cut", func() { must(t, m.Cut()) })
}

// withoutFlowCache has a node load fewer programs: an emulated kernel takes long to verify them.
func (b *bed) withoutFlowCache(dir string) {
	b.t.Helper()
	f, err := os.OpenFile(filepath.Join(dir, "config.yaml"), os.O_APPEND|os.O_WRONLY, 0)
	must(b.t, err)
	_, err = f.WriteString("flowCache: {mode: off}\n")
	must(b.t, errors.Join(err, f.Close()))
}

// atGuest waits until the virtual machine serves an address of each family, and the client has it
// there.
func (b *bed) atGuest() (list []netip.Addr) {
	b.t.Helper()
	for _, six := range []bool{false, true} {
		b.until("the virtual machine owns an address", func() bool {
			for _, a := range b.vips {
				if x := b.nodes[0].l2of(a); a.Is6() == six && x != nil && x.Owner == guestName {
					list = append(list, a)
					return true
				}
			}
			return false
		})
	}
	for _, a := range list {
		must(b.t, b.exchange(a, patience.For(10*time.Second)))
		b.until("the client has "+a.String()+" at the virtual machine", func() bool {
			return b.neighbor(a).String() == vm.NodeMAC
		})
	}
	return list
}

// survives has the virtual machine die as an owner, and measures for how long its addresses are not
// served.
func (b *bed) survives(death string, die func()) {
	b.t.Helper()
	list := b.atGuest()
	var probes []*workload.Probe
	for _, a := range list {
		probes = append(probes, b.probe("udp", a), b.probe("tcp", a))
	}
	time.Sleep(300 * time.Millisecond)
	die()
	for _, a := range list {
		b.until("the other node owns "+a.String(), func() bool { return len(b.owners(a)) == 1 })
	}
	time.Sleep(300 * time.Millisecond)
	for i, p := range probes {
		a, r := list[i/2], p.End()
		b.t.Logf("%s: %s: %d requests, %d lost, longest gap %v", death, a, r.Sent, r.Lost, r.Gap)
		if limit := patience.For(time.Second); r.Gap > limit || r.Gap == 0 {
			b.t.Errorf("%s: %s: a gap of %v, at most %v is allowed: %v", death, a, r.Gap, limit, r.Err)
		}
	}
	for _, a := range list {
		b.untilClientAt(a)
	}
}
