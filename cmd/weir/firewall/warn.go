package firewall

import (
	"fmt"
	"log/slog"

	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/table"
)

// Warn logs how many rules of the host's firewall are void, since traffic is taken before
// them, and the first.
func Warn(frontends *table.Snapshot, attached []string, log *slog.Logger) {
	var list []Frontend
	for f := range frontends.All() {
		packet := Packet{Interfaces: attached, Protocol: f.Proto, To: f.AddrPort, LastPort: f.LastPort}
		g := Frontend{Name: fmt.Sprintf("%s %s of %s", header.ProtocolName(f.Proto), f.Address(), f.ServiceName), Packet: packet}
		for _, e := range f.Pool.Endpoints() {
			if packet.To = e.AddrPort; f.LastPort != 0 {
				packet.To = f.Target(&e, f.AddrPort.Port())
			}
			g.Endpoints = append(g.Endpoints, packet)
		}
		list = append(list, g)
	}
	rules := ReadNFTables()
	void := rules.Void(list)
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
