package firewall

import (
	"fmt"

	"github.com/weirlb/weir/lb/hostveth"
)

// Frontend is packets that Weir takes.
type Frontend struct {
	Name   string // "TCP 10.0.0.1:30080 of shop/web"
	Packet Packet
	// Endpoints are the same packets after a translation by kube-proxy, which rules of input and
	// forward see.
	Endpoints []Packet
}

// NodePorts stands for the frontends of Services that are not known: node ports of any protocol.
func NodePorts(interfaces []string, first, last uint16) Frontend {
	return Frontend{
		Name:   fmt.Sprintf("node ports %d-%d", first, last),
		Packet: Packet{Interfaces: interfaces, To: addrPort(first), LastPort: last},
	}
}

// Void lists the rules that may concern packets to frontends, with the first of the frontends.
func (r *Rules) Void(frontends []Frontend) (lines []string) {
	x := newIndex(frontends)
	for i := range r.List {
		rule := &r.List[i]
		switch first, n := x.concerned(rule, i+1); {
		case n == 1:
			lines = append(lines, fmt.Sprintf("%v: may concern %s", rule, frontends[first].Name))
		case n > 1:
			lines = append(lines, fmt.Sprintf("%v: may concern %s and %d more frontends", rule, frontends[first].Name, n-1))
		}
	}
	return lines
}

// PastInput lists the rules that guard programs of the node against packets by attached
// interfaces, and do not name the interface by which packets from Weir come to these programs.
func (r *Rules) PastInput(attached []string) (lines []string) {
	for i := range r.List {
		if rule := &r.List[i]; rule.Hook == "input" && rule.Names(attached, hostveth.KernelEnd) {
			lines = append(lines, rule.String())
		}
	}
	return lines
}
