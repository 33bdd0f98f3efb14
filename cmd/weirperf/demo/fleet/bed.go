package fleet

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
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
	"github.com/weirlb/weir/perf/netlab/router"
	"github.com/weirlb/weir/perf/netlab/workload"
)

// Time limits, on a quiet machine.
const (
	followWithin = 40 * time.Second // the router; sessions begin and time out
	stopWithin   = 20 * time.Second
	readyWithin  = 20 * time.Second // a receiver of tunnels
)

// bed is the lab with everything that runs in it.
type bed struct {
	*netlab.Fleet
	weir   string // the program
	router *router.Router
	nodes  [nodes]*node
}

// node is a Weir.
type node struct {
	*netlab.Daemon // of the last start
	number         int
	namespace      *netlab.Namespace
	dir            string
	admin          *api.Client
	starts         int
}

// newBed builds the lab, starts router, servers and nodes, and waits until the router sends to
// all nodes.
func newBed(ctx context.Context, r *report, o *options) (_ *bed, err error) {
	weir, err := program.Weir()
	if err != nil {
		return nil, err
	}
	lab, err := netlab.NewFleet(nodes)
	if err != nil {
		return nil, err
	}
	b := &bed{Fleet: lab, weir: weir}
	defer func() {
		if err != nil {
			err = errors.Join(err, b.close())
		}
	}()
	r.topology()
	ranges := []netip.Prefix{netip.PrefixFrom(netlab.Host4(netlab.FleetNet, 0), 24), netip.PrefixFrom(netlab.Host6(netlab.FleetNet, 0), 64)}
	if b.router, err = router.StartFRR(lab.Router, lab.Dir(), router.FRR(router.Neighbors{Ranges: ranges, Hold: o.hold, BFD: o.bfd})); err != nil {
		return nil, err
	}
	if err := b.serve(ctx); err != nil {
		return nil, err
	}
	for i, n := range lab.Nodes {
		dir := filepath.Join(lab.Dir(), n.Name())
		b.nodes[i] = &node{number: i + 1, namespace: n, dir: dir, admin: api.NewClient(filepath.Join(dir, "weir.sock"))}
		if err := writeFiles(dir, i+1, o); err != nil {
			return nil, err
		}
		if err := b.start(b.nodes[i]); err != nil {
			return nil, err
		}
	}
	r.line("starting four nodes")
	if _, err := b.follows(ctx, 0, 1, 2, 3); err != nil {
		return nil, fmt.Errorf("%w\n%s", err, b.logs())
	}
	r.line("the router sends to all nodes")
	return b, nil
}

// serve starts the endpoints: an HTTP and an echo server each, and a receiver of tunnels.
func (b *bed) serve(ctx context.Context) error {
	var receivers []*netlab.Daemon
	for i, host := range servers {
		n := b.Server
		if i > 0 {
			var err error
			if n, err = b.AddServer(fmt.Sprint("server", i+1), host); err != nil {
				return err
			}
		}
		web, err := workload.Serve(n, n.Name(), fmt.Sprintf("[::]:%d", httpPort))
		if err != nil {
			return err
		}
		b.OnClose(web.Close)
		echo, err := workload.ServeEcho(n, n.Name(), fmt.Sprintf("[::]:%d", echoPort))
		if err != nil {
			return err
		}
		b.OnClose(echo.Close)
		receiver, err := b.decap(n)
		if err != nil {
			return err
		}
		receivers = append(receivers, receiver)
	}
	ctx, cancel := context.WithTimeout(ctx, patience.For(readyWithin))
	defer cancel()
	for _, d := range receivers {
		err := d.Until(ctx, func(context.Context) error {
			if said := d.LogTail(5); !strings.Contains(said, "ready") {
				return fmt.Errorf("weir decap is not ready: %s", said)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// decap starts `weir decap` on an endpoint's node.
func (b *bed) decap(n *netlab.Namespace) (*netlab.Daemon, error) {
	v := modes[0].addresses()
	cmd := exec.Command(b.weir, "decap", "--address", fmt.Sprintf("%s,%s", v[0], v[1]),
		"--from", fmt.Sprintf("%s/24,%s/64", netlab.Host4(netlab.FleetNet, 0), netlab.Host6(netlab.FleetNet, 0)))
	return n.StartDaemon(cmd, filepath.Join(b.Dir(), "decap-"+n.Name()+".log"))
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

// follows waits until the router sends all addresses to exactly these nodes, from 0, and returns
// when it did.
func (b *bed) follows(ctx context.Context, to ...int) (time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, patience.For(followWithin))
	defer cancel()
	var want4, want6 []netip.Addr
	for _, i := range to {
		want4 = append(want4, netlab.Host4(netlab.FleetNet, uint8(netlab.FleetFirstNode+i)))
		want6 = append(want6, netlab.Host6(netlab.FleetNet, uint8(netlab.FleetFirstNode+i)))
	}
	for i := range modes {
		for _, a := range modes[i].addresses() {
			want := want4
			if a.Is6() {
				want = want6
			}
			for {
				got, err := router.NextHops(b.Router, netip.PrefixFrom(a, a.BitLen()))
				if err != nil {
					return time.Time{}, err
				}
				if slices.Equal(got, want) {
					break
				}
				if err := wait(ctx, 2*time.Millisecond); err != nil {
					return time.Time{}, fmt.Errorf("the router sends %s to %v, want %v: %w", a, got, want, err)
				}
			}
		}
	}
	return time.Now(), nil
}

// detects waits until BFD of all sessions is up, if there is any: a node that leaves before is
// missed after the hold time.
func (b *bed) detects(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patience.For(followWithin))
	defer cancel()
	for _, n := range b.nodes {
		for {
			s, err := n.admin.Status(ctx)
			if err != nil {
				return err
			}
			down := slices.IndexFunc(s.Announce.Peers, func(p api.AnnouncePeer) bool { return p.BFD != "" && p.BFD != "up" })
			if down < 0 {
				break
			}
			if err := wait(ctx, 20*time.Millisecond); err != nil {
				return fmt.Errorf("node%d: BFD with %s is %s: %w", n.number, s.Announce.Peers[down].Peer, s.Announce.Peers[down].BFD, err)
			}
		}
	}
	return nil
}

// logs is the end of the logs of router and nodes.
func (b *bed) logs() string {
	text := b.router.Log()
	for _, n := range b.nodes {
		if n != nil {
			text += fmt.Sprintf("node%d:\n%s\n", n.number, n.LogTail(10))
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
	return errors.Join(append(errs[:], b.Fleet.Close())...)
}

// wait waits for d, or returns ctx's error.
func wait(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
