package lan

import (
	"fmt"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/weirlb/weir/perf/netlab/workload"
)

// product is a bed with one of the programs that keep an address on a link.
type product interface {
	lab() *bed
	// master is the node that has the address, when one has and the others are ready to take it.
	master() int
	kill(i int)
	restart(i int)
}

// BenchmarkFailover measures for how long an address on a link is not served, beside keepalived, in
// turn: the process killed, the node unreachable with a carrier, the carrier lost.
//
//	go test -run '^$' -bench Failover -benchtime 5x -timeout 20m ./cmd/weir/e2e/lan
func BenchmarkFailover(b *testing.B) {
	w, k := &weirs{newBed(b, 3, 1)}, newKeepaliveds(b)
	w.startAll()
	gaps := map[string][]time.Duration{}
	faults := []string{"killed", "unreachable", "no carrier"}
	for range b.N {
		for _, fault := range faults {
			for name, p := range map[string]product{"weir": w, "keepalived": k} {
				name = fmt.Sprintf("%-12s %s", fault, name)
				gaps[name] = append(gaps[name], outage(p, fault))
			}
		}
	}
	var text strings.Builder
	for _, name := range slices.Sorted(maps.Keys(gaps)) {
		list := gaps[name]
		slices.Sort(list)
		fmt.Fprintf(&text, "\n%-24s median %4d ms, longest %4d ms of %d", name, list[len(list)/2].Milliseconds(), list[len(list)-1].Milliseconds(), len(list))
	}
	fmt.Println(text.String()) // the log of a benchmark ends after 10 lines
}

// outage is how long no new connection to the address is served after a fault of its node.
func outage(p product, fault string) time.Duration {
	b := p.lab()
	i := p.master()
	c := workload.StartProbe(b.Client, "tcp", netip.AddrPortFrom(vip4(0), port), probeEvery, 500*time.Millisecond)
	time.Sleep(300 * time.Millisecond)
	switch fault {
	case "killed":
		p.kill(i)
	case "unreachable":
		b.port(i, (*netlink.Handle).LinkSetNoMaster)
	case "no carrier":
		b.port(i, (*netlink.Handle).LinkSetDown)
	}
	time.Sleep(3 * time.Second)
	gap := c.End().Gap
	switch fault {
	case "killed":
		p.restart(i)
	case "unreachable":
		br, err := b.Switch.Interface("br0")
		must(b.t, err)
		b.port(i, func(h *netlink.Handle, l netlink.Link) error { return h.LinkSetMaster(l, br) })
	case "no carrier":
		b.port(i, (*netlink.Handle).LinkSetUp)
	}
	return gap
}

type weirs struct{ *bed }

func (w *weirs) lab() *bed { return w.bed }
func (w *weirs) master() int {
	w.untilOwned()
	return w.owner(vip4(0))
}
func (w *weirs) kill(i int)    { must(w.t, w.nodes[i].Signal(syscall.SIGKILL)) }
func (w *weirs) restart(i int) { w.start(i) }

// keepaliveds are the same link with keepalived and a server on each node.
type keepaliveds struct{ *bed }

func newKeepaliveds(t testing.TB) *keepaliveds {
	k := &keepaliveds{newBed(t, 3, 0)}
	for i, n := range k.nodes {
		l, err := n.Listen("tcp", fmt.Sprint(":", port))
		must(t, err)
		k.OnClose(l.Close)
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				_ = c.Close()
			}
		}()
		k.restart(i)
	}
	return k
}

func (k *keepaliveds) lab() *bed { return k.bed }

func (k *keepaliveds) restart(i int) {
	n := k.nodes[i]
	n.dir = filepath.Join(k.Dir(), n.Namespace.Name())
	must(k.t, os.MkdirAll(n.dir, 0o755))
	_ = n.RemoveAddr("eth0", netip.PrefixFrom(vip4(0), 24))
	file := filepath.Join(n.dir, "keepalived.conf")
	must(k.t, os.WriteFile(file, fmt.Appendf(nil, `global_defs {
  router_id %s
  vrrp_version 3
}
vrrp_instance lan {
  state BACKUP
  nopreempt
  interface eth0
  virtual_router_id 51
  priority %d
  advert_int 0.1
  virtual_ipaddress { %s/24 dev eth0 }
}
`, n.Namespace.Name(), 100+i, vip4(0)), 0o644))
	d, err := n.StartDaemon(exec.Command("keepalived", "-n", "-l", "-P", "-f", file,
		"-p", filepath.Join(n.dir, "pid"), "-r", filepath.Join(n.dir, "vrrp.pid")), filepath.Join(n.dir, "log"))
	must(k.t, err)
	n.Daemon = d
}

func (k *keepaliveds) master() (master int) {
	k.until("one keepalived has the address", func() bool {
		masters := 0
		for i, n := range k.nodes {
			l, err := n.Interface("eth0")
			must(k.t, err)
			list, err := n.Netlink().AddrList(l, netlink.FAMILY_V4)
			must(k.t, err)
			if slices.ContainsFunc(list, func(x netlink.Addr) bool { return x.IP.String() == vip4(0).String() }) {
				master, masters = i, masters+1
			}
		}
		return masters == 1
	})
	time.Sleep(time.Second) // the others have heard it
	return master
}

// kill ends both processes: the one that sends would say farewell when its parent dies.
func (k *keepaliveds) kill(i int) {
	pid := k.nodes[i].Cmd.Process.Pid
	must(k.t, k.nodes[i].Signal(syscall.SIGSTOP))
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", pid))
	must(k.t, err)
	for _, child := range strings.Fields(string(text)) {
		n, err := strconv.Atoi(child)
		must(k.t, err)
		must(k.t, syscall.Kill(n, syscall.SIGKILL))
	}
	must(k.t, k.nodes[i].Signal(syscall.SIGKILL))
}

// BenchmarkIdle measures the cost of 1,000 addresses for a node while nothing happens, beside a node that
// serves the same addresses and announces nothing, in the same minute.
func BenchmarkIdle(b *testing.B) {
	w := newBed(b, 4, 0)
	w.thousand()
	silent := w.nodes[3]
	w.start(3, "objects", "# objects", "l2:", "# l2:")
	w.nodes = w.nodes[:3]
	for i := range w.nodes {
		w.start(i)
	}
	w.untilJoined()
	w.until("all addresses have an owner", func() bool {
		n := 0
		for i := range w.nodes {
			n += w.owned(i)
		}
		return n == len(w.vips)
	})
	time.Sleep(35 * time.Second) // nodes are new for 30 s
	for range b.N {
		packets, used, without := w.sent(0), cpu(b, w.nodes[0]), cpu(b, silent)
		const d = time.Minute
		time.Sleep(d)
		share := func(n *node, before time.Duration) float64 { return 100 * (cpu(b, n) - before).Seconds() / d.Seconds() }
		fmt.Printf("\n%d addresses, %d at this node: %.0f packets/s, CPU %.2f %%; a node that announces nothing: %.2f %%", len(w.vips), w.owned(0),
			float64(w.sent(0)-packets)/d.Seconds(), share(w.nodes[0], used), share(silent, without))
	}
	fmt.Println()
}

// sent are the packets that a node has sent.
func (b *bed) sent(i int) uint64 {
	l, err := b.nodes[i].Interface("eth0")
	must(b.t, err)
	return l.Attrs().Statistics.TxPackets
}

// cpu is the CPU time that the process of a node has used.
func cpu(t testing.TB, n *node) time.Duration {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", n.Cmd.Process.Pid))
	must(t, err)
	f := strings.Fields(string(text[strings.LastIndex(string(text), ")")+2:]))
	user, err := strconv.Atoi(f[11])
	must(t, err)
	system, err := strconv.Atoi(f[12])
	must(t, err)
	return time.Duration(user+system) * 10 * time.Millisecond // USER_HZ is 100
}
