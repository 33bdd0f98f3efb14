package hostveth

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/lb/markrule"
	"github.com/weirlb/weir/lb/route"
	"github.com/weirlb/weir/lb/vethpair"
	"github.com/weirlb/weir/perf/netlab"
	"github.com/weirlb/weir/perf/netlab/patience"
)

// mark puts a chain into Weir's table, which ends with the table.
func mark() error {
	c, err := nftables.New()
	if err != nil {
		return err
	}
	c.AddChain(&nftables.Chain{Name: "marked", Table: &nftables.Table{Family: nftables.TableFamilyINet, Name: tableName}})
	return c.Flush()
}

// marked reports whether the table is the one that mark was called for.
func marked() (bool, error) {
	c, err := nftables.New()
	if err != nil {
		return false, err
	}
	list, err := c.ListChainsOfTableFamily(nftables.TableFamilyINet)
	return slices.ContainsFunc(list, func(c *nftables.Chain) bool { return c.Name == "marked" }), err
}

// A host veth that is as the next process would make it stays. Routes that the next process
// does not ask for go.
func TestWireTheHostVethOfTheLastProcessIsKept(t *testing.T) {
	r := newRig(t)
	r.open()
	kept, gone := netlab.Host4(netlab.LBNet, 9), netlab.Host4(netlab.LBNet, 10)
	node, other := netlab.Host4(netlab.FabricNet, 1), netlab.Host4(netlab.ClientNet, 1)
	pods := []netip.Addr{netlab.Host4(netlab.PodNet, 2), netlab.Host4(netlab.PodNet, 3)}
	var source netip.Addr
	r.do(func() (err error) {
		if _, err := r.veth.SourceFor(other); err != nil {
			return err
		}
		source, err = r.veth.SourceFor(node)
		return errors.Join(err, r.veth.AddRoute(kept), r.veth.AddRoute(gone),
			r.veth.AddEndpoint(pods[0]), r.veth.AddEndpoint(pods[1]))
	})
	cfg := r.config()
	r.do(mark)
	// As an earlier release has left it.
	r.do(func() error { return vethpair.SetOffloads(KernelEnd, map[string]bool{vethpair.FragmentLists: true}) })
	r.veth.reconciler.stop()
	r.wire.Close()
	r.do(func() (err error) { r.veth, err = Open(cfg); return err })
	r.do(func() error {
		same, err := marked()
		if !same {
			t.Error("the rules were made anew")
		}
		if off, err := vethpair.HasOffloads(KernelEnd, map[string]bool{vethpair.FragmentLists: false}); !off {
			t.Errorf("lists of packets enter the pair (%v)", err)
		}
		again, errSource := r.veth.SourceFor(node)
		if again != source {
			t.Errorf("the source for %s was %s, and is %s", node, source, again)
		}
		return errors.Join(err, errSource, r.veth.AddRoute(kept), r.veth.AddEndpoint(pods[0]))
	})
	r.veth.Settle()
	deadline := time.Now().Add(patience.For(10 * time.Second))
	for {
		var routes, throws []netlink.Route
		r.do(func() (err error) {
			if routes, err = r.veth.link.ownRoutes(unix.AF_INET); err != nil {
				return err
			}
			throws, err = markrule.Routes(unix.AF_INET, r.config().Table)
			return err
		})
		if len(routes) == 2 && len(throws) == 2 {
			for i := range routes {
				if to := destination(&routes[i]); to != kept && to != source {
					t.Errorf("route to %s", to)
				}
			}
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("routes %v, table %v", routes, throws)
		}
		time.Sleep(5 * time.Millisecond)
	}
	r.tap()
	dst := netip.AddrPortFrom(pods[0], 8080)
	echo(t, r.Pod, dst)
	r.exchange(netip.AddrPortFrom(r.veth.Route(0).Local4, 1024), dst)
	r.close()
}

// A host veth that differs from what this process would make is made anew.
func TestWireADifferentHostVethIsNotKept(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(r *rig, cfg *Config) error
	}{
		{"another prefix", func(_ *rig, cfg *Config) error {
			cfg.Prefix4 = netip.MustParsePrefix("169.254.78.0/24")
			return nil
		}},
		{"another mark", func(_ *rig, cfg *Config) error { cfg.Mark = 0x20; return nil }},
		{"another table", func(_ *rig, cfg *Config) error { cfg.Table = 7766; return nil }},
		{"no mark", func(_ *rig, cfg *Config) error { cfg.Mark = 0; return nil }},
		{"GRO", func(_ *rig, cfg *Config) error { // which a veth of Linux 5.10 begins with
			cfg.Redirects = true
			return vethpair.SetOffloads(KernelEnd, map[string]bool{"rx-gro": false})
		}},
		{"no rules", func(*rig, *Config) error { return removeRules() }},
		{"no return path", func(*rig, *Config) error { return removeReturnPath() }},
		{"down", func(r *rig, _ *Config) error { return netlink.LinkSetDown(r.veth.link.kernel()) }},
		{"another address", func(r *rig, _ *Config) error {
			return netlink.AddrAdd(r.veth.link.kernel(), &netlink.Addr{IPNet: ipNet(netip.MustParseAddr("169.254.77.9"), 32)})
		}},
		{"no neighbor", func(r *rig, cfg *Config) error {
			a := address(cfg.Prefix4, localHost)
			return netlink.NeighDel(&netlink.Neigh{LinkIndex: r.veth.link.kernel().Attrs().Index, Family: unix.AF_INET, IP: a.AsSlice()})
		}},
		{"sysctl", func(r *rig, _ *Config) error {
			return r.veth.link.sysctls.write("net/ipv4/conf/"+KernelEnd+"/rp_filter", "1")
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t)
			r.open()
			r.do(func() error {
				cfg := r.config()
				if err := newVeth(cfg).look(); err != nil {
					return fmt.Errorf("before: %w", err)
				}
				if err := tt.change(r, &cfg); err != nil {
					return err
				}
				if err := newVeth(cfg).look(); err == nil {
					t.Error("it would be kept")
				}
				return nil
			})
		})
	}
}

func TestWireAHostVethOfOtherQueuesIsNotKept(t *testing.T) {
	r := newRig(t)
	r.open()
	cfg := r.config()
	index := r.veth.Index()
	r.veth.reconciler.stop()
	cfg.Queues = 1
	r.do(func() (err error) { r.veth, err = Open(cfg); return err })
	if r.veth.Index() == index {
		t.Error("the pair was kept")
	}
	r.close()
}

// Other programs change the node while no process runs.
func TestWireChangesOfTheHostVethAreSeen(t *testing.T) {
	r := newRig(t)
	frontend, later := netlab.Host4(netlab.LBNet, 9), netlab.Host4(netlab.LBNet, 10)
	node, other := netlab.Host4(netlab.FabricNet, 1), netlab.Host4(netlab.ClientNet, 1)
	pod := netlab.Host4(netlab.PodNet, 2)
	var source netip.Addr
	for _, tt := range []struct {
		name   string
		kept   bool
		change func() error
	}{
		{"nothing", true, func() error { return nil }},
		{"a Service less", true, func() error { return r.veth.RemoveRoute(frontend) }},
		{"a Service more", true, func() error { return r.veth.AddRoute(later) }},
		{"an endpoint less", true, func() error { return netlink.RouteDel(r.veth.returnPath.throwRoute(pod)) }},
		{"a source of another address", true, func() error {
			return netlink.RouteReplace(&netlink.Route{
				LinkIndex: r.veth.link.kernel().Attrs().Index, Dst: ipNet(source, 32), Src: other.AsSlice(),
				Scope: netlink.SCOPE_LINK, Protocol: route.Protocol,
			})
		}},
		{"no rules", false, removeRules},
		{"no routing rule", false, removeReturnPath},
		{"MTU", false, func() error { return netlink.LinkSetMTU(r.veth.link.kernel(), 1400) }},
		{"down", false, func() error { return netlink.LinkSetDown(r.veth.link.xdp()) }},
		{"sysctl", false, func() error { return r.veth.link.sysctls.write("net/ipv4/conf/"+KernelEnd+"/rp_filter", "1") }},
		{"another pair", false, func() error {
			err := r.veth.link.pair.Remove()
			if err == nil {
				r.veth.link.pair, err = vethpair.Make(vethpair.Config{Names: ends, Queues: 2})
			}
			return err
		}},
		{"the last process has stopped", false, func() error { return r.veth.link.pair.Remove() }},
	} {
		r.open()
		cfg := r.config()
		r.do(func() (err error) {
			source, err = r.veth.SourceFor(node)
			return errors.Join(err, r.veth.AddRoute(frontend), r.veth.AddEndpoint(pod))
		})
		r.do(mark)
		r.do(tt.change)
		r.veth.reconciler.stop()
		r.wire.Close()
		r.do(func() (err error) { r.veth, err = Open(cfg); return err })
		r.do(func() (err error) {
			source, err = r.veth.SourceFor(node)
			return errors.Join(err, r.veth.AddRoute(frontend), r.veth.AddEndpoint(pod))
		})
		r.do(func() error {
			kept, err := marked()
			if kept != tt.kept {
				t.Errorf("%s: the rules were kept: %v", tt.name, kept)
			}
			r.veth.settle()
			return err
		})
		r.tap()
		r.do(func() error { return r.checkAsMade(tt.name, cfg, frontend, node, source) })
		dst := netip.AddrPortFrom(pod, uint16(8080))
		if tt.name == "nothing" {
			echo(t, r.Pod, dst)
		}
		r.exchange(netip.AddrPortFrom(r.veth.Route(0).Local4, 1024), dst)
		r.close()
	}
}

// checkAsMade checks the host veth with a frontend and a source for an address of the node.
func (r *rig) checkAsMade(name string, cfg Config, frontend, node, source netip.Addr) error {
	r.Helper()
	h := newVeth(cfg)
	if err := h.look(); err != nil {
		r.Errorf("%s: %v", name, err)
		return nil
	}
	if !h.link.pair.Fits(vethpair.Config{MTU: cfg.MTU, Queues: cfg.Queues}) || h.link.pair[0].Attrs().Index != r.veth.link.kernel().Attrs().Index {
		r.Errorf("%s: pair %v %v", name, h.link.pair[0].Attrs(), h.link.pair[1].Attrs())
	}
	sources := h.routes.foundSources
	n, ok := sources[node]
	if len(h.routes.foundRoutes) != 1 || !h.routes.foundRoutes[frontend] || len(h.returnPath.found) != 1 ||
		len(sources) != 1 || !ok || address(cfg.Prefix4, n) != source {
		r.Errorf("%s: %+v, %+v, source %s", name, h.routes, h.returnPath, source)
	}
	return nil
}
