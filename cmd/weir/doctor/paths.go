package doctor

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/cmd/weir/config"
)

// commonMTU is that of most networks: clients send packets of this size.
const commonMTU = 1500

// path is a group of endpoints that packets reach in the same manner.
type path struct {
	iface string
	mtu   int    // for packets of clients
	outer int    // bytes of headers before them
	mode  string // forwarding mode, where it adds headers
}

// outerHeaders is the length of headers that a forwarding mode adds.
func outerHeaders(mode string, six bool) int {
	ip := 20
	if six {
		ip = 40
	}
	switch mode {
	case config.ForwardIPIP:
		return ip
	case config.ForwardGUE:
		return ip + 8 + 4 // UDP, GUE
	}
	return 0
}

// survey is how packets reach the endpoints, beside the interfaces that Weir is attached to.
type survey struct {
	mtus  map[string]int      // of the attached interfaces
	paths map[path]netip.Addr // with an example of an endpoint
}

func newSurvey(attached []string, frontends []api.Frontend) *survey {
	return &survey{mtus: mtusOf(attached), paths: endpointPaths(frontends)}
}

// mtusOf are the MTUs of interfaces, by name.
func mtusOf(names []string) map[string]int {
	mtus := map[string]int{}
	for _, name := range names {
		if dev, err := netlink.LinkByName(name); err == nil {
			mtus[name] = dev.Attrs().MTU
		}
	}
	return mtus
}

// endpointPaths groups the endpoints by path, with an example of each.
func endpointPaths(frontends []api.Frontend) map[path]netip.Addr {
	type target struct {
		addr netip.Addr
		mode string
	}
	paths, seen, names := map[path]netip.Addr{}, map[target]bool{}, map[int]netlink.Link{}
	for i := range frontends {
		for _, e := range frontends[i].Endpoints {
			ap, err := netip.ParseAddrPort(e.Address)
			to := target{ap.Addr(), e.Mode}
			if err != nil || seen[to] {
				continue
			}
			seen[to] = true
			if by, ok := pathTo(to.addr, to.mode, names); ok {
				if _, known := paths[by]; !known {
					paths[by] = to.addr
				}
			}
		}
	}
	return paths
}

// pathTo asks the kernel for the route.
func pathTo(a netip.Addr, mode string, links map[int]netlink.Link) (path, bool) {
	routes, err := netlink.RouteGet(a.AsSlice())
	if err != nil || len(routes) == 0 {
		return path{}, false
	}
	r := &routes[0]
	dev := links[r.LinkIndex]
	if dev == nil {
		if dev, err = netlink.LinkByIndex(r.LinkIndex); err != nil {
			return path{}, false
		}
		links[r.LinkIndex] = dev
	}
	outer := outerHeaders(mode, a.Is6())
	to := path{iface: dev.Attrs().Name, mtu: cmp.Or(r.MTU, dev.Attrs().MTU) - outer, outer: outer}
	if outer > 0 {
		to.mode = mode
	}
	return to, true
}

// judge compares the MTU of attached interfaces with those of the paths to endpoints: larger
// packets of clients are not delivered until the client has taken the ICMP error into account.
func (s *survey) judge(r *Report) {
	widest, by := 0, ""
	for _, name := range slices.Sorted(maps.Keys(s.mtus)) {
		if s.mtus[name] > widest {
			widest, by = s.mtus[name], name
		}
	}
	for _, to := range slices.SortedFunc(maps.Keys(s.paths), func(a, b path) int {
		return cmp.Or(cmp.Compare(a.iface, b.iface), cmp.Compare(a.mtu, b.mtu))
	}) {
		s.judgePath(r, to, widest, by)
	}
}

func (s *survey) judgePath(r *Report, to path, widest int, by string) {
	example := s.paths[to]
	_, attached := s.mtus[to.iface]
	subject := "path by " + to.iface
	fact := fmt.Sprintf("endpoints such as %s take packets of %d bytes, and %s those of %d", example, to.mtu, by, widest)
	switch {
	case to.mtu >= widest:
		r.add(OK, subject, "endpoints such as %s take packets of %d bytes", example, to.mtu)
	case to.outer > 0:
		r.add(Warning, subject, "%s: mode %s adds %d bytes", fact, to.mode, to.outer).
			mend("ip link set %s mtu %d, or the annotation weir.dev/mss-clamp: auto", to.iface, widest+to.outer)
	case !attached:
		// Pods have the MTU of their network, and their TCP announces it.
		r.add(OK, subject, "%s: TCP of pods announces the smaller size", fact)
	case to.mtu < min(widest, commonMTU):
		r.add(Fault, subject, "%s: larger packets are lost where clients get no ICMP", fact).
			mend("ip link set %s mtu %d", to.iface, widest)
	default:
		r.add(Warning, subject, "%s", fact).mend("ip link set %s mtu %d", to.iface, widest)
	}
}

// behindKernel are the interfaces, beside those attached, that lead to endpoints in modes
// whose answers come back through this node.
func (s *survey) behindKernel() map[string]bool {
	out := map[string]bool{}
	for to, example := range s.paths {
		if _, attached := s.mtus[to.iface]; !attached && to.iface != "lo" && to.outer == 0 && example.Is4() {
			out[to.iface] = true
		}
	}
	return out
}
