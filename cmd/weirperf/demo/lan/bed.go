package lan

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/cmd/weirperf/program"
	"github.com/weirlb/weir/perf/netlab"
	"github.com/weirlb/weir/perf/netlab/patience"
	"github.com/weirlb/weir/perf/netlab/workload"
)

// Time limits, on a quiet machine.
const (
	ownedWithin = 15 * time.Second
	stopWithin  = 20 * time.Second
	asksEvery   = 10 * time.Millisecond // for owners
)

// bed is the lab with everything that runs in it.
type bed struct {
	*netlab.LAN
	weir  string // the program
	nodes [nodes]*node
	home  owners // at the beginning
}

// node is a Weir.
type node struct {
	*netlab.Daemon // of the last start
	namespace      *netlab.Namespace
	dir            string
	admin          *api.Client
	starts         int
}

// newBed builds the lab, starts servers and nodes, and waits until each address has an owner. With an
// error it may return a lab that is to be closed.
func newBed(ctx context.Context, r *report) (*bed, error) {
	weir, err := program.Weir()
	if err != nil {
		return nil, err
	}
	lab, err := netlab.NewLAN(nodes)
	if err != nil {
		return nil, err
	}
	b := &bed{LAN: lab, weir: weir}
	if err := b.serve(); err != nil {
		return b, err
	}
	key := filepath.Join(lab.Dir(), "l2.key")
	if err := writeKey(key); err != nil {
		return b, err
	}
	for i, n := range lab.Nodes {
		dir := filepath.Join(lab.Dir(), n.Name())
		b.nodes[i] = &node{namespace: n, dir: dir, admin: api.NewClient(filepath.Join(dir, "weir.sock"))}
		if err := writeFiles(dir, n.Name(), key); err != nil {
			return b, err
		}
		if err := b.start(b.nodes[i]); err != nil {
			return b, err
		}
	}
	r.line("starting three nodes")
	if b.home, err = b.share(ctx); err != nil {
		return b, fmt.Errorf("%w\n%s", err, b.logs())
	}
	r.line("each of %d addresses has an owner", len(addresses()))
	return b, nil
}

// stalled reports whether a node has found that its process did not run for so long that others may have
// taken its addresses.
func (b *bed) stalled() bool {
	return slices.ContainsFunc(b.nodes[:], func(n *node) bool {
		if n == nil {
			return false
		}
		logs, _ := filepath.Glob(filepath.Join(n.dir, "log*"))
		return slices.ContainsFunc(logs, func(f string) bool {
			text, err := os.ReadFile(f)
			return err == nil && strings.Contains(string(text), "the process did not run")
		})
	})
}

// share waits until the nodes have joined each other, and has each take the addresses that are its own
// by the hash: a node that has started late leaves them at the others.
func (b *bed) share(ctx context.Context) (owners, error) {
	joined := func(owners) bool {
		return !slices.ContainsFunc(b.nodes[:], func(n *node) bool { return !b.joined(ctx, n) })
	}
	if _, err := b.settle(ctx, nil, joined); err != nil {
		return nil, err
	}
	for _, n := range b.nodes {
		if _, err := n.admin.DrainSelf(ctx, true); err != nil {
			return nil, err
		}
	}
	return b.settle(ctx, nil, func(o owners) bool {
		for i := range b.nodes {
			if _, err := o.targets(i); err != nil {
				return false
			}
		}
		return true
	})
}

// serve starts the endpoints. In mode l2dsr they get packets for load balancer IPs, for which they
// must not answer ARP.
func (b *bed) serve() error {
	for i, host := range servers {
		n := b.Server
		if i > 0 {
			var err error
			if n, err = b.AddHost(fmt.Sprint("server", i+1), host); err != nil {
				return err
			}
		}
		for key, value := range map[string]string{
			"net/ipv4/conf/all/arp_ignore": "1", "net/ipv4/conf/all/arp_announce": "2", "net/ipv6/ip_nonlocal_bind": "1",
		} {
			if err := n.SetSysctl(key, value); err != nil {
				return err
			}
		}
		for _, of := range families {
			own := []netip.Addr{of(netlab.LANNet, host)}
			for _, a := range modes[0].addresses(of) {
				if err := n.AddLocal(netip.PrefixFrom(a, a.BitLen())); err != nil {
					return err
				}
				own = append(own, a)
			}
			for _, a := range own { // each: datagrams are answered from the address that was asked
				echo, err := workload.ServeEcho(n, n.Name(), netip.AddrPortFrom(a, echoPort).String())
				if err != nil {
					return err
				}
				b.OnClose(echo.Close)
			}
		}
	}
	return nil
}

// start starts the Weir of a node.
func (b *bed) start(n *node) (err error) {
	n.starts++
	cmd := exec.Command(b.weir, "run", "--config", filepath.Join(n.dir, "config.yaml"))
	n.Daemon, err = n.namespace.StartDaemon(cmd, filepath.Join(n.dir, fmt.Sprintf("log%d", n.starts)))
	return err
}

// running reports whether the Weir has not ended.
func (n *node) running() bool { return n != nil && n.Daemon.Running() }

// owners are the nodes that own addresses, from 0.
type owners map[netip.Addr]int

// targets are addresses of a node, of each mode and family.
func (o owners) targets(node int) (out [][]netip.AddrPort, err error) {
	for i := range modes {
		var list []netip.AddrPort
		for _, of := range families {
			own := modes[i].addresses(of)
			k := slices.IndexFunc(own, func(a netip.Addr) bool { return o[a] == node })
			if k < 0 {
				return nil, fmt.Errorf("node%d owns no address like %s", node+1, own[0])
			}
			list = append(list, netip.AddrPortFrom(own[k], echoPort))
		}
		out = append(out, list)
	}
	return out, nil
}

// owners asks the running nodes but one which addresses they own. It returns an error while an
// address has not exactly one owner, which all of them name.
func (b *bed) owners(ctx context.Context, but *node) (owners, error) {
	out, named := owners{}, map[netip.Addr]string{}
	for i, n := range b.nodes {
		if n == but || !n.running() {
			continue
		}
		s, err := n.admin.Status(ctx)
		if err != nil {
			return nil, err
		}
		if s.Announce == nil {
			return nil, fmt.Errorf("%s announces nothing yet", n.namespace.Name())
		}
		for k := range s.Announce.Addresses {
			a := &s.Announce.Addresses[k]
			if a.L2 == nil || a.L2.Owner == "" {
				return nil, fmt.Errorf("%s knows no owner of %s", n.namespace.Name(), a.Address)
			}
			if other := named[a.Address]; other != "" && other != a.L2.Owner {
				return nil, fmt.Errorf("%s is at %s for %s, and at %s for others", a.Address, a.L2.Owner, n.namespace.Name(), other)
			}
			if named[a.Address] = a.L2.Owner; a.L2.State == "owner" {
				out[a.Address] = i
			}
		}
	}
	for _, a := range addresses() {
		if _, ok := out[a]; !ok {
			return nil, fmt.Errorf("%s has no owner", a)
		}
	}
	return out, nil
}

// settle waits until each address has one owner, and a condition of them is met.
func (b *bed) settle(ctx context.Context, but *node, met func(owners) bool) (owners, error) {
	ctx, cancel := context.WithTimeout(ctx, patience.For(ownedWithin))
	defer cancel()
	for {
		o, err := b.owners(ctx, but)
		if err == nil && met(o) {
			return o, nil
		}
		if waited := wait(ctx, asksEvery); waited != nil {
			return nil, fmt.Errorf("owners have not settled: %w", errors.Join(waited, err))
		}
	}
}

// joined reports whether a node has all others that run as members.
func (b *bed) joined(ctx context.Context, n *node) bool {
	s, err := n.admin.Status(ctx)
	if err != nil || s.Announce == nil || len(s.Announce.L2) != 1 {
		return false
	}
	for _, other := range b.nodes {
		if other != n && other.running() && !slices.Contains(s.Announce.L2[0].Nodes, other.namespace.Name()) {
			return false
		}
	}
	return true
}

// logs is the end of the logs of the nodes.
func (b *bed) logs() (text string) {
	for _, n := range b.nodes {
		if n != nil {
			text += fmt.Sprintf("%s:\n%s\n", n.namespace.Name(), n.LogTail(10))
		}
	}
	return text
}

// close stops the nodes as an operator would, and removes the lab.
func (b *bed) close() error {
	var stopping sync.WaitGroup
	var errs [nodes]error
	for i, n := range b.nodes {
		if n.running() {
			stopping.Go(func() { errs[i] = n.Stop(patience.For(stopWithin)) })
		}
	}
	stopping.Wait()
	return errors.Join(append(errs[:], b.LAN.Close())...)
}
