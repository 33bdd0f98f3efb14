package lan

import (
	"bytes"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/weirlb/weir/perf/netlab"
	"github.com/weirlb/weir/perf/netlab/patience"
)

// Three nodes share the addresses of a link. A client reaches each at its owner.
func TestWireOneOwnerPerAddress(t *testing.T) {
	b := newBed(t, 3, 4)
	b.startAll()
	spread := map[int]int{}
	for _, a := range b.vips {
		owner := b.owner(a)
		spread[owner]++
		must(t, b.exchange(a, patience.For(3*time.Second)))
		b.untilClientAt(a)
	}
	if len(spread) < 2 {
		t.Errorf("all addresses are at one node: %v", spread)
	}
	b.asksWithPriority(vip4(0))
}

// asksWithPriority asks for an address by ARP with a priority tag, which is of no VLAN, and awaits
// the answer.
func (b *bed) asksWithPriority(a netip.Addr) {
	b.t.Helper()
	tap, err := netlab.NewTap(b.client, "eth0")
	must(b.t, err)
	defer tap.Close()
	l, err := b.client.Interface("eth0")
	must(b.t, err)
	mac, own := string(l.Attrs().HardwareAddr), netlab.Host4(network, clientID)
	must(b.t, tap.Send([]byte("\xff\xff\xff\xff\xff\xff"+mac+"\x81\x00\xe0\x00\x08\x06\x00\x01\x08\x00\x06\x04\x00\x01"+
		mac+string(own.AsSlice())+"\x00\x00\x00\x00\x00\x00"+string(a.AsSlice()))))
	for end := time.Now().Add(patience.For(3 * time.Second)); ; {
		f, _, err := tap.Receive(time.Until(end))
		if err != nil || time.Now().After(end) {
			b.t.Fatalf("no answer to a question with a priority tag: %v", err)
		}
		if bytes.Equal(f[:6], l.Attrs().HardwareAddr) && bytes.Contains(f, []byte("\x08\x06\x00\x01\x08\x00\x06\x04\x00\x02")) {
			return
		}
	}
}

// The owner is killed. Another takes the address, and the client follows.
func TestWireKilledOwner(t *testing.T) {
	b := newBed(t, 3, 1)
	b.startAll()
	for i, a := range b.vips {
		owner := b.owner(a)
		must(t, b.exchange(a, patience.For(3*time.Second)))
		p := b.probe(a)
		time.Sleep(300 * time.Millisecond)
		must(t, b.nodes[owner].Signal(syscall.SIGKILL))
		b.until("another owner", func() bool { l := b.owners(a); return len(l) == 1 && l[0] != owner })
		time.Sleep(300 * time.Millisecond)
		sent, lost, gap := p.end()
		t.Logf("%s: %d probes, %d lost, longest gap %v", a, sent, lost, gap)
		if limit := patience.For(time.Second); gap > limit || gap == 0 {
			t.Errorf("%s: a gap of %v, at most %v is allowed", a, gap, limit)
		}
		if i > 0 {
			break
		}
		b.start(owner)
		b.untilOwned()
		if b.owner(a) == owner {
			t.Errorf("%s: the node that came back has it, nobody told it to", a)
		}
	}
}

// Planned moves lose nothing.
func TestWireDrainedOwner(t *testing.T) {
	b := newBed(t, 3, 1)
	b.startAll()
	for name, leave := range map[string]func(n *node) error{
		"SIGTERM": func(n *node) error { return n.Signal(syscall.SIGTERM) },
		"SIGUSR2": func(n *node) error { return n.Signal(syscall.SIGUSR2) },
		"drain": func(n *node) error {
			_, err := n.admin.DrainSelf(t.Context(), false)
			return err
		},
	} {
		a := b.vips[len(name)%2]
		owner := b.owner(a)
		must(t, b.exchange(a, patience.For(3*time.Second)))
		p := b.probe(a)
		time.Sleep(200 * time.Millisecond)
		must(t, leave(b.nodes[owner]))
		b.until("another owner", func() bool { l := b.owners(a); return len(l) == 1 && l[0] != owner })
		time.Sleep(1500 * time.Millisecond)
		sent, lost, gap := p.end()
		t.Logf("%s: %d probes, %d lost, longest gap %v", name, sent, lost, gap)
		if lost > 0 {
			t.Errorf("%s: %d of %d probes are lost", name, lost, sent)
		}
		if name == "drain" {
			_, err := b.nodes[owner].admin.DrainSelf(t.Context(), true)
			must(t, err)
		} else {
			<-b.nodes[owner].Done()
			_ = os.Remove(b.nodes[owner].dir + "/weir.sock")
			b.start(owner)
		}
		b.untilOwned()
	}
}
