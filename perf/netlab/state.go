package netlab

import (
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/safchain/ethtool"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// State is everything that a program can leave behind in a namespace: interfaces with
// attached programs and offloads, addresses, routes, rules, nftables tables,
// kernel settings and pinned BPF objects, each under a descriptive name.
type State map[string]string

// Diff lists the differences of two states, a line for each.
func (s State) Diff(later State) []string {
	var out []string
	union := maps.Clone(s)
	maps.Copy(union, later)
	for _, k := range slices.Sorted(maps.Keys(union)) {
		before, had := s[k]
		after, has := later[k]
		switch {
		case !has:
			out = append(out, fmt.Sprintf("- %s: %s", k, before))
		case !had:
			out = append(out, fmt.Sprintf("+ %s: %s", k, after))
		case before != after:
			out = append(out, fmt.Sprintf("! %s: %s, was %s", k, after, before))
		}
	}
	return out
}

// StateOf reads the state of a namespace.
func StateOf(n *Namespace) (State, error) {
	s := State{}
	for _, part := range []struct {
		what string
		read func(*Namespace) error
	}{
		{"interfaces", s.readLinks}, {"routes", s.readRoutes}, {"nftables", s.readTables},
		{"settings", s.readSettings}, {"pins", s.readPins},
	} {
		if err := part.read(n); err != nil {
			return nil, fmt.Errorf("%s of namespace %s: %w", part.what, n.name, err)
		}
	}
	return s, nil
}

func (s State) readLinks(n *Namespace) error {
	links, err := n.nl.LinkList()
	if err != nil {
		return err
	}
	for _, l := range links {
		a := l.Attrs()
		xdp := "no XDP"
		if a.Xdp != nil && a.Xdp.Attached {
			xdp = "XDP attached"
		}
		s["link "+a.Name] = fmt.Sprintf("%s, MTU %d, flags %s, promiscuous %d, all multicast %d, %s",
			l.Type(), a.MTU, a.Flags, a.Promisc, a.Allmulti, xdp)
		addrs, err := n.nl.AddrList(l, netlink.FAMILY_ALL)
		if err != nil {
			return err
		}
		for _, addr := range addrs {
			// Tentative, the state of duplicate address detection, passes by itself.
			s[fmt.Sprintf("address %s on %s", addr.IPNet, a.Name)] = fmt.Sprintf("flags %#x", addr.Flags&^unix.IFA_F_TENTATIVE)
		}
	}
	return n.Do(func() error {
		e, err := ethtool.NewEthtool()
		if err != nil {
			return err
		}
		defer e.Close()
		for _, l := range links {
			features, err := e.Features(l.Attrs().Name)
			if err != nil {
				return fmt.Errorf("offloads of %s: %w", l.Attrs().Name, err)
			}
			for f, on := range features {
				s["offload "+l.Attrs().Name+" "+f] = fmt.Sprint(on)
			}
		}
		return nil
	})
}

func (s State) readRoutes(n *Namespace) error {
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		routes, err := n.nl.RouteListFiltered(family, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
		if err != nil {
			return err
		}
		for _, r := range routes {
			s[fmt.Sprintf("route %v table %d interface %d metric %d", r.Dst, r.Table, r.LinkIndex, r.Priority)] =
				fmt.Sprintf("via %v, type %d, scope %s", r.Gw, r.Type, r.Scope)
		}
		rules, err := n.nl.RuleList(family)
		if err != nil {
			return err
		}
		for _, r := range rules {
			s[fmt.Sprintf("rule family %d priority %d", family, r.Priority)] = r.String()
		}
	}
	return nil
}

func (s State) readTables(n *Namespace) error {
	c, err := nftables.New(nftables.WithNetNSFd(int(n.Handle())))
	if err != nil {
		return err
	}
	tables, err := c.ListTables()
	if err != nil {
		return err
	}
	for _, t := range tables {
		s["nftables table "+t.Name] = fmt.Sprintf("family %d", t.Family)
	}
	return nil
}

// readSettings reads every setting below /proc/sys/net, except counters.
func (s State) readSettings(n *Namespace) error {
	return n.Do(func() error {
		return filepath.WalkDir("/proc/sys/net", func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return nil // interfaces come and go while their directories are read
			}
			if strings.HasSuffix(path, "_count") || strings.HasSuffix(path, "_queue_len") {
				return nil
			}
			if b, err := os.ReadFile(path); err == nil { // some can only be written
				s["setting "+strings.TrimPrefix(path, "/proc/sys/")] = strings.TrimSpace(string(b))
			}
			return nil
		})
	})
}

func (s State) readPins(n *Namespace) error {
	return n.Inside(func() error {
		return filepath.WalkDir("/sys/fs/bpf", func(path string, d fs.DirEntry, err error) error {
			if err == nil && path != "/sys/fs/bpf" {
				s["pin "+path] = d.Type().String()
			}
			return err
		})
	})
}
