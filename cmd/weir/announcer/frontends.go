package announcer

import (
	"net/netip"
	"strings"

	"github.com/weirlb/weir/lb/announce"
	"github.com/weirlb/weir/lb/table"
	"github.com/weirlb/weir/topology"
)

// announcedFrontend is a frontend whose address may be announced.
type announcedFrontend struct {
	announce.Frontend
	address netip.Addr
	at      string
	proto   uint8
	key     table.Key
	held    bool // by another Service
}

// frontendsOf are the frontends of a Service whose addresses may be announced.
func frontendsOf(s *table.Service) (out []announcedFrontend) {
	namespace, _, _ := strings.Cut(s.Name, "/")
	for i := range s.Frontends {
		f := &s.Frontends[i]
		if f.Kind != table.LoadBalancer && f.Kind != table.ExternalIP {
			continue
		}
		p := &s.Pools[f.Pool]
		x := announcedFrontend{address: f.AddrPort.Addr().Unmap(), at: table.AddressText(f.AddrPort, f.LastPort), proto: f.Proto, key: f.Key()}
		x.Service, x.Namespace, x.Created, x.Changed = s.Name, namespace, s.Created, s.PolicyChanged
		x.Labels = s.Labels
		x.External, x.Endpoints = f.Kind == table.ExternalIP, len(p.Endpoints)
		// With Local policy, endpoints that terminate serve only those who have not heard yet of
		// a ready endpoint elsewhere: routers are told at once. Without one anywhere they are the
		// last that serve (KEP-1669), and a withdrawal would cut off their connections.
		if p.OnEmpty == table.Drop && (len(p.Endpoints) == 0 || p.Tier == string(topology.TierTerminating) && p.AnyReady) {
			x.Endpoints, x.Elsewhere = 0, true
		}
		out = append(out, x)
	}
	return out
}
