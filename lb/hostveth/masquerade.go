package hostveth

import (
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// masqueradeChain is where packets from the forward sources are masqueraded
// when they leave by another interface than the host veth.
const masqueradeChain = "postrouting"

// masqueradeRules is the chain with its rules.
func (rl *ruleset) masqueradeRules() ruleChain {
	c := ruleChain{
		name: masqueradeChain, kind: nftables.ChainTypeNAT,
		hook: nftables.ChainHookPostrouting, priority: nftables.ChainPriorityNATSource,
	}
	for _, p := range rl.link.prefixes.list() {
		c.rules = append(c.rules, masqueradeFrom(address(p, forwardHost)))
	}
	return c
}

// warnForwardPolicy warns of chains that drop forwarded packets unless a rule accepts them,
// as Docker and firewalld leave them: a rule of Weir's cannot
// overrule them.
func (rl *ruleset) warnForwardPolicy() {
	c, err := nftables.New()
	if err != nil {
		return
	}
	chains, err := c.ListChains()
	if err != nil {
		return
	}
	for _, ch := range chains {
		if ch.Hooknum != nil && *ch.Hooknum == *nftables.ChainHookForward && ch.Policy != nil &&
			*ch.Policy == nftables.ChainPolicyDrop && ch.Table.Family != nftables.TableFamilyBridge {
			rl.log.Warn("a firewall chain drops forwarded packets by policy: it must accept those from and to the host veth, or endpoints behind the kernel get no traffic",
				"table", ch.Table.Name, "chain", ch.Name, "interface", KernelEnd)
		}
	}
}

// masqueradeFrom is the rule for a source address.
func masqueradeFrom(a netip.Addr) []expr.Any {
	family, offset := byte(unix.NFPROTO_IPV4), uint32(12)
	if a.Is6() {
		family, offset = unix.NFPROTO_IPV6, 8
	}
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{family}},
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: uint32(a.BitLen() / 8)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: a.AsSlice()},
		&expr.Meta{Key: expr.MetaKeyOIFNAME, Register: 1},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: interfaceName(KernelEnd)},
		&expr.Counter{},
		&expr.Masq{},
	}
}
