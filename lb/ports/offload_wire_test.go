package ports

import (
	"errors"
	"log/slog"
	"testing"

	"github.com/safchain/ethtool"
	"github.com/vishvananda/netlink"

	"github.com/weirlb/weir/lb/ports/offload"
	"github.com/weirlb/weir/lb/steer"
	"github.com/weirlb/weir/lb/warning"
	"github.com/weirlb/weir/perf/netlab"
	"github.com/weirlb/weir/perf/netlab/labtest"
)

// The offloads of an interface that was renamed are put back on that interface, and not on another
// that has got the name.
func TestWireOffloadsFollowARename(t *testing.T) {
	labtest.Require(t)
	lab, err := netlab.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := lab.Close(); err != nil {
			t.Error(err)
		}
	})
	node, err := lab.Namespace("node")
	if err != nil {
		t.Fatal(err)
	}
	for name, end := range map[string]func(ps *Ports, id int) error{
		"at the end":        func(ps *Ports, _ int) error { return ps.Close() },
		"as it is not used": func(ps *Ports, id int) error { ps.life.remove(id, false); return nil },
	} {
		t.Run(name, func(t *testing.T) {
			if err := node.Do(func() error { return offloadsFollow(t, t.TempDir(), end) }); err != nil {
				t.Error(err)
			}
		})
	}
}

// offloadsFollow runs in a network namespace.
func offloadsFollow(t *testing.T, dir string, end func(ps *Ports, id int) error) error {
	const noted, renamed, feature = "lan0", "lan1", "rx-gro"
	tool, err := ethtool.NewEthtool()
	if err != nil {
		return err
	}
	defer tool.Close()
	pair := func(name, peer string) (netlink.Link, error) {
		err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: peer})
		if err != nil {
			return nil, err
		}
		return netlink.LinkByName(name)
	}
	l, err := pair(noted, "peer0")
	if err != nil {
		return err
	}
	defer netlink.LinkDel(l)
	if err := tool.Change(noted, map[string]bool{feature: true}); err != nil {
		return err
	}
	log := slog.New(slog.DiscardHandler)
	ps := newPorts(Config{Log: log, Warnings: warning.NewList(log)})
	ps.list.ports = []*port{{name: noted, index: l.Attrs().Index, vlanParent: -1}}
	if ps.steering.offloads, err = offload.Open(dir); err != nil {
		return err
	}
	if _, err := ps.steering.offloads.Disable(noted, steer.XDP, steer.Generic); err != nil {
		return err
	}
	other, err := netlink.Link(nil), netlink.LinkSetName(l, renamed)
	if err == nil {
		other, err = pair(noted, "peer1")
	}
	if err != nil {
		return err
	}
	defer netlink.LinkDel(other)
	if err := errors.Join(tool.Change(noted, map[string]bool{feature: false}), end(ps, 0)); err != nil {
		return err
	}
	for name, want := range map[string]bool{renamed: true, noted: false} {
		features, err := tool.Features(name)
		if err != nil {
			return err
		}
		if features[feature] != want {
			t.Errorf("%s of %s is %v", feature, name, features[feature])
		}
	}
	return nil
}
