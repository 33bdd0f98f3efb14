package firewall

import (
	"fmt"
	"slices"

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
	for i := range r.List {
		rule := &r.List[i]
		first, n := "", 0
		for j := range frontends {
			if !rule.concerns(&frontends[j]) {
				continue
			}
			if n++; first == "" {
				first = frontends[j].Name
			}
		}
		switch {
		case n == 1:
			lines = append(lines, fmt.Sprintf("%v: may concern %s", rule, first))
		case n > 1:
			lines = append(lines, fmt.Sprintf("%v: may concern %s and %d more frontends", rule, first, n-1))
		}
	}
	return lines
}

func (r *Rule) concerns(f *Frontend) bool {
	if r.Concerns(&f.Packet) {
		return true
	}
	if r.Hook != "input" && r.Hook != "forward" {
		return false
	}
	return slices.ContainsFunc(f.Endpoints, func(p Packet) bool { return r.Concerns(&p) })
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
