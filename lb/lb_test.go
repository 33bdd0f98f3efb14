package lb

import (
	"errors"
	"log/slog"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/reassign"
	"github.com/weirlb/weir/lb/route"
	"github.com/weirlb/weir/lb/snat"
	"github.com/weirlb/weir/lb/steer"
	"github.com/weirlb/weir/lb/table"
	"github.com/weirlb/weir/lb/worker"
	"github.com/weirlb/weir/lb/xsk"
)

var (
	node4 = netip.MustParseAddr("198.51.100.1")
	snat4 = netip.MustParseAddr("10.1.0.1")
	snat6 = netip.MustParseAddr("2001:db8:2::1")
)

func ap(a netip.Addr, port uint16) netip.AddrPort { return netip.AddrPortFrom(a, port) }

// newControl is a load balancer without interfaces and workers.
func newControl(t *testing.T, cfg Config, program *steer.Program) *LB {
	t.Helper()
	cfg.Log = slog.New(slog.DiscardHandler)
	l := newLB(cfg)
	l.steer = program
	var err error
	if l.flows, err = conntrack.Open(conntrack.Config{MaxFlows: 1 << 10, Workers: 1, MaxEndpoints: 1 << 10}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.flows.Close() })
	if l.memory, err = xsk.NewUmem(64, xsk.FrameSize); err != nil {
		t.Fatal(err)
	}
	memory := l.memory
	t.Cleanup(func() { memory.Close() })
	l.router = route.Static(map[netip.Prefix]route.Path{
		netip.PrefixFrom(node4, 32): {Kind: route.Host, Local: true, MTU: 1500},
	}, nil)
	l.tables = table.New(table.Config{Tick: l.flows.Tick})
	l.reassign = reassign.New(l.flows, l.tables)
	l.counts.open(1)
	l.makeParts()
	own := snat.Source{Addr: snat4, Lo: 61000, Hi: 65535}
	l.node.Store(&worker.Node{
		Addresses: snat.New(snat.Config{Lo: 61000, Hi: 65535, Owned: []snat.Source{own}}), ReturnPath: true,
	})
	return l
}

// loaded loads a steering program.
func loaded(t *testing.T, cfg steer.Config) *steer.Program {
	t.Helper()
	p, err := steer.Load(cfg)
	if errors.Is(err, unix.EPERM) {
		t.Skip("needs CAP_BPF")
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close(true) })
	return p
}

// A drain is published to the workers, and changes nothing else of what they see.
func TestDrainIsPublished(t *testing.T) {
	l := newControl(t, Config{}, nil)
	l.refuseConnections()
	key := conntrack.MakeKey(ap(node4, 1), ap(snat4, 62000), 6)
	node := l.node.Load()
	if owned, _ := node.OwnsTuple(&key); !node.Draining || !node.ReturnPath || !owned {
		t.Errorf("workers see %+v", node)
	}
	if n := l.Connections(); n != 0 {
		t.Errorf("a drain waits for %d connections of an empty table", n)
	}
}
