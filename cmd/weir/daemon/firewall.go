package daemon

import (
	"fmt"
	"log/slog"

	"github.com/weirlb/weir/cmd/weir/firewall"
	"github.com/weirlb/weir/lb"
	"github.com/weirlb/weir/lb/header"
)

// logFirewall logs how many rules of the host's firewall are void, since traffic is taken before
// them, and the first.
func logFirewall(l *lb.LB, attached []string, log *slog.Logger) {
	var frontends []firewall.Frontend
	for f := range l.Tables().Load().All() {
		packet := firewall.Packet{Interfaces: attached, Protocol: f.Proto, To: f.AddrPort}
		g := firewall.Frontend{Name: fmt.Sprintf("%s %s of %s", header.ProtocolName(f.Proto), f.AddrPort, f.ServiceName), Packet: packet}
		for _, e := range f.Pool.Endpoints() {
			packet.To = e.AddrPort
			g.Endpoints = append(g.Endpoints, packet)
		}
		frontends = append(frontends, g)
	}
	rules := firewall.ReadNFTables()
	void := rules.Void(frontends)
	if len(void) == 0 && len(rules.Enforcers) == 0 {
		return
	}
	first := ""
	if len(void) > 0 {
		first = void[0]
	}
	log.Warn("rules of the firewall do not apply to packets to frontends: weir doctor lists them",
		"rules", len(void), "first", first, "policiesOf", rules.Enforcers)
}
