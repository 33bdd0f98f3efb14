package lan

import (
	"bytes"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weirlb/weir/perf/netlab"
	"github.com/weirlb/weir/perf/netlab/patience"
	"github.com/weirlb/weir/perf/netlab/weirtest"
	"github.com/weirlb/weir/perf/netlab/workload"
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
	b.passesARP(vip4(0))
}

// passesARP has weir doctor of the owner of an address ask hosts from it.
func (b *bed) passesARP(a netip.Addr) {
	b.t.Helper()
	n := b.nodes[b.owner(a)]
	var out []byte
	must(b.t, n.Namespace.Do(func() error {
		out, _ = exec.Command(weirtest.Binary(b.t), "doctor", "--config", filepath.Join(n.dir, "config.yaml")).CombinedOutput() // the machine may have faults
		return nil
	}))
	if !strings.Contains(string(out), "hosts answer ARP to 10.70.0.1") {
		b.t.Errorf("weir doctor of the owner of %s:\n%s", a, out)
	}
}

// asksWithPriority asks for an address by ARP with a priority tag, which is of no VLAN, and awaits
// the answer.
func (b *bed) asksWithPriority(a netip.Addr) {
	b.t.Helper()
	tap, err := netlab.NewTap(b.Client, "eth0")
	must(b.t, err)
	defer tap.Close()
	l, err := b.Client.Interface("eth0")
	must(b.t, err)
	must(b.t, tap.Send(b.question(a, "\x81\x00\xe0\x00")))
	for end := time.Now().Add(patience.For(3 * time.Second)); ; {
		f, _, err := tap.Receive(time.Until(end))
		if err != nil || time.Now().After(end) {
			b.t.Fatalf("no answer to a question with a priority tag: %v", err)
		}
		if bytes.Equal(f[:6], l.Attrs().HardwareAddr) && bytes.Contains(f, []byte(isARPReply)) {
			return
		}
	}
}

// isARPReply is the part of a frame from the type of Ethernet on.
const isARPReply = "\x08\x06\x00\x01\x08\x00\x06\x04\x00\x02"

// question is the frame by which the client asks for an address by ARP, with a VLAN tag or "".
func (b *bed) question(a netip.Addr, tag string) []byte {
	b.t.Helper()
	l, err := b.Client.Interface("eth0")
	must(b.t, err)
	mac, own := string(l.Attrs().HardwareAddr), netlab.Host4(network, clientID)
	return []byte("\xff\xff\xff\xff\xff\xff" + mac + tag + "\x08\x06\x00\x01\x08\x00\x06\x04\x00\x01" +
		mac + string(own.AsSlice()) + "\x00\x00\x00\x00\x00\x00" + string(a.AsSlice()))
}

// answers asks for an address by ARP every 10 ms until end is called, which returns for how long two hosts
// answered while it moved once.
func (b *bed) answers(a netip.Addr) (end func() time.Duration) {
	b.t.Helper()
	tap, err := netlab.NewTap(b.Client, "eth0")
	must(b.t, err)
	ask, stop, overlap := b.question(a, ""), make(chan struct{}), make(chan time.Duration)
	go func() {
		defer tap.Close()
		var from string // the first host
		var last, next time.Time
		for at := time.Now(); ; {
			select {
			case <-stop:
				overlap <- max(0, last.Sub(next))
				return
			default:
			}
			if !time.Now().Before(at) {
				_ = tap.Send(ask)
				at = at.Add(probeEvery)
			}
			f, _, err := tap.Receive(max(time.Until(at), time.Millisecond))
			if err != nil || len(f) < 42 || string(f[12:22]) != isARPReply || string(f[28:32]) != string(a.AsSlice()) {
				continue
			}
			switch mac := string(f[22:28]); {
			case from == "" || mac == from:
				from, last = mac, time.Now()
			case next.IsZero():
				next = time.Now()
			}
		}
	}()
	return func() time.Duration {
		close(stop)
		return <-overlap
	}
}

// The owner is killed. Another takes the address, and the client follows. The switch has learned the
// others at a wrong port and forgets nothing for five minutes: what the new owner sends corrects it.
func TestWireKilledOwner(t *testing.T) {
	b := newBed(t, 3, 1)
	b.startAll()
	for i, a := range b.vips {
		owner := b.owner(a)
		must(t, b.exchange(a, patience.For(3*time.Second)))
		p := b.probe("udp", a)
		time.Sleep(300 * time.Millisecond)
		must(t, b.nodes[owner].Signal(syscall.SIGKILL))
		b.misplace(owner)
		b.until("another owner", func() bool { l := b.owners(a); return len(l) == 1 && l[0] != owner })
		time.Sleep(300 * time.Millisecond)
		r := p.End()
		t.Logf("%s: %d probes, %d lost, longest gap %v", a, r.Sent, r.Lost, r.Gap)
		if limit := patience.For(time.Second); r.Gap > limit || r.Gap == 0 {
			t.Errorf("%s: a gap of %v, at most %v is allowed", a, r.Gap, limit)
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

// Planned moves lose no datagram and no new connection, and neither do the moves back of a node that is
// told to take back its addresses. Two hosts answer at a time hardly ever.
func TestWireDrainedOwner(t *testing.T) {
	b := newBed(t, 3, 4)
	b.startAll()
	a := vip4(0)
	owner := b.owner(a) // the first choice
	list := []netip.Addr{a}
	for i := range 4 {
		if b.owner(vip6(i)) == owner {
			list = append(list, vip6(i))
			break
		}
	}
	n := b.nodes[owner]
	drain := func(undo bool) error { _, err := n.admin.DrainSelf(t.Context(), undo); return err }
	for _, c := range []struct {
		name  string
		leave func() error
		ends  bool
	}{
		{"drain", func() error { return drain(false) }, false},
		{"SIGTERM", func() error { return n.Signal(syscall.SIGTERM) }, true},
		{"SIGUSR2", func() error { return n.Signal(syscall.SIGUSR2) }, true},
	} {
		var probes []*workload.Probe
		for _, x := range list {
			must(t, b.exchange(x, patience.For(3*time.Second)))
			probes = append(probes, b.probe("udp", x), b.probe("tcp", x))
		}
		left := b.answers(a)
		time.Sleep(200 * time.Millisecond)
		must(t, c.leave())
		b.until("another owner", func() bool { l := b.owners(a); return len(l) == 1 && l[0] != owner })
		time.Sleep(1500 * time.Millisecond)
		overlaps := []time.Duration{left()}
		if c.ends {
			b.until("it has ended", func() bool {
				select {
				case <-n.Done():
					return true
				default:
					return false
				}
			})
			_ = os.Remove(n.dir + "/weir.sock")
			b.start(owner)
		}
		returned := b.answers(a)
		b.until("the node is told to take its addresses back", func() bool { return drain(true) == nil })
		b.until("it has the address again", func() bool { l := b.owners(a); return len(l) == 1 && l[0] == owner })
		time.Sleep(500 * time.Millisecond)
		overlaps = append(overlaps, returned())
		for i, p := range probes {
			r := p.End()
			t.Logf("%s: %s: %d probes, %d lost, longest gap %v", c.name, list[i/2], r.Sent, r.Lost, r.Gap)
			if r.Lost > 0 || r.Sent == 0 {
				t.Errorf("%s: %d of %d probes are lost: %v", c.name, r.Lost, r.Sent, r.Err)
			}
		}
		t.Logf("%s: two hosts answer for %v when it leaves, and when it returns", c.name, overlaps)
		if limit := patience.For(time.Second); max(overlaps[0], overlaps[1]) > limit {
			t.Errorf("%s: two hosts answer for %v, at most %v is allowed", c.name, overlaps, limit)
		}
		b.untilOwned()
		for i, n := range b.nodes {
			s, err := n.status()
			must(t, err)
			for _, l := range s.Announce.L2 {
				if l.Claimed > 0 {
					t.Errorf("%s: node %d has heard two owners %d times, which raises an alert", c.name, i, l.Claimed)
				}
			}
		}
	}
}
