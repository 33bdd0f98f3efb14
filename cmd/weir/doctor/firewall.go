package doctor

import (
	"fmt"
	"net/netip"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/cmd/weir/firewall"
	"github.com/weirlb/weir/cmd/weir/hostcheck"
	"github.com/weirlb/weir/lb/header"
)

// firewall names the rules that are void for packets to frontends, before and after Weir takes
// them.
func (p *patient) firewall() {
	p.takeHostFindings(hostcheck.CheckFirewall(p.cfg, guardedFrontends(p.frontends, p.cfg.AttachedNames())))
}

// guardedFrontends are frontends as rules of the firewall see their packets.
func guardedFrontends(list []api.Frontend, attached []string) (out []firewall.Frontend) {
	for i := range list {
		f := &list[i]
		protocol, _ := header.ProtocolNumber(f.Protocol)
		to, err := f.First()
		if err != nil {
			continue
		}
		packet := firewall.Packet{Interfaces: attached, Protocol: protocol, To: to}
		g := firewall.Frontend{Name: fmt.Sprintf("%s %s of %s", f.Protocol, f.Address, f.Service), Packet: packet}
		for _, e := range f.Endpoints {
			if packet.To, err = netip.ParseAddrPort(e.Address); err == nil {
				g.Endpoints = append(g.Endpoints, packet)
			}
		}
		out = append(out, g)
	}
	return out
}
