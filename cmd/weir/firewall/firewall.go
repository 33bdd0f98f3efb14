// Package firewall reads the host's firewall rules of other programs that packets meet on
// arrival. Weir takes packets to frontends before them, so rules that concern a frontend are
// void for its packets. It changes nothing.
//
//	firewall.go   what a rule concerns
//	nftables.go   tables of nftables, and so those of iptables-nft
//	registers.go  the expressions of a rule
//	conditions.go the conditions of a rule
//	iptables.go   tables of the older iptables
//	index.go      the packets to frontends by port and address
//	warn.go       the log of a start
//
// A condition that is not understood counts as met: better a rule too many is named.
package firewall

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Packet is a packet on arrival.
type Packet struct {
	Interfaces []string // it arrives by any of them; none: by any interface
	Protocol   uint8
	To         netip.AddrPort
	// LastPort is the end of a range of ports, 0: of To alone.
	LastPort uint16
}

// Rule is a rule that ends in a drop, a rejection or a translation, or the policy of a chain.
type Rule struct {
	Hook  string // ingress, prerouting, input or forward
	Chain string // "table inet guard, chain pre"
	Text  string // "iifname eth0 tcp dport 22 drop", as far as it is understood
	// Interfaces are the names of interfaces that packets must arrive by; a last * stands for any
	// characters.
	Interfaces []string
	conditions []condition
}

// condition reports whether a packet may meet a condition.
type condition struct {
	text string
	met  func(*Packet) bool
	// located is true if it depends on the port or the address. ports or addrs are the only ranges
	// with which it is met, nil if it is met with others.
	located bool
	ports   [][2]uint16
	addrs   [][2]netip.Addr
}

// String is "CHAIN (HOOK): TEXT".
func (r *Rule) String() string { return fmt.Sprintf("%s (%s): %s", r.Chain, r.Hook, r.Text) }

// Concerns reports whether the rule may apply to a packet.
func (r *Rule) Concerns(p *Packet) bool {
	for _, c := range r.conditions {
		if c.met != nil && !c.met(p) {
			return false
		}
	}
	return true
}

// Names reports whether the rule applies to packets by an interface of those, and not by another.
func (r *Rule) Names(interfaces []string, not string) bool {
	return slices.ContainsFunc(r.Interfaces, func(pattern string) bool {
		return slices.ContainsFunc(interfaces, func(name string) bool { return matches(pattern, name) })
	}) && !slices.ContainsFunc(r.Interfaces, func(pattern string) bool { return matches(pattern, not) })
}

// matches reports whether a name is that of a pattern with an optional * at the end.
func matches(pattern, name string) bool {
	if prefix, ok := strings.CutSuffix(pattern, "*"); ok {
		return strings.HasPrefix(name, prefix)
	}
	return pattern == name
}

// own are the beginnings of the names of chains of Weir and of kube-proxy, whose work Weir does.
var own = []string{"KUBE-"}

// policies are the beginnings of the names of chains by which programs enforce NetworkPolicies and
// the like, and the programs.
var policies = map[string]string{
	"cali-": "Calico", "KUBE-NWPLCY": "kube-router", "KUBE-POD-FW": "kube-router", "WEAVE-NPC": "Weave Net", "ANTREA-": "Antrea", "FELIX-": "Calico",
}

// enforcer is the program of a chain that enforces policies, "" for other chains.
func enforcer(chain string) string {
	for prefix, program := range policies {
		if strings.HasPrefix(chain, prefix) {
			return program
		}
	}
	return ""
}

func isOwn(chain string) bool {
	return slices.ContainsFunc(own, func(prefix string) bool { return strings.HasPrefix(chain, prefix) })
}

// Rules is what Read has found.
type Rules struct {
	List []Rule
	// Enforcers are the programs that enforce NetworkPolicies by chains.
	Enforcers []string
	// Unread are tables that could not be read, with the reason.
	Unread []string
}

// Read reads the rules of the calling thread's network namespace.
func Read() Rules {
	var found Rules
	readNFTables(&found)
	readLegacy(&found)
	slices.Sort(found.Enforcers)
	found.Enforcers = slices.Compact(found.Enforcers)
	return found
}

// ReadNFTables is Read without the tables of the older iptables, which take a program to read.
func ReadNFTables() Rules {
	var found Rules
	readNFTables(&found)
	return found
}

// addrPort is a port of any address.
func addrPort(port uint16) netip.AddrPort { return netip.AddrPortFrom(netip.Addr{}, port) }
