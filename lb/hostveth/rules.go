package hostveth

import (
	"log/slog"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// tableName is the nftables table, Weir's alone:
//
//	table inet weir {
//		chain postrouting {
//			type nat hook postrouting priority srcnat
//			ip saddr 169.254.77.3 oifname != "weir-host" masquerade
//			ip6 saddr fd77:7765:6972::3 oifname != "weir-host" masquerade
//		}
//		chain prerouting {
//			type filter hook prerouting priority dstnat + 10
//			iifname "weir-host" ct direction original ct state established return
//			iifname "weir-host" ether saddr (returnPathMAC) ct mark set ct mark or 0x10
//			iifname "weir-host" return
//			ct mark and 0x10 == 0x10 meta mark set meta mark or 0x10
//		}
//		chain output {
//			type route hook output priority dstnat + 10
//			ct mark and 0x10 == 0x10 meta mark set meta mark or 0x10
//		}
//	}
//
// Each rule has a comment with a sum of all rules, by which the next process knows that the
// table is as it would make it.
const tableName = "weir"

// ruleChain is a chain of the table.
type ruleChain struct {
	name     string
	kind     nftables.ChainType
	hook     *nftables.ChainHook
	priority *nftables.ChainPriority
	rules    [][]expr.Any
}

// ruleset is the table.
type ruleset struct {
	link              *link
	mark              uint32
	masquerade, marks bool // it has those rules
	log               *slog.Logger
}

// chains are those of the table.
func (rl *ruleset) chains(masquerade, marks bool) []ruleChain {
	var list []ruleChain
	if masquerade {
		list = append(list, rl.masqueradeRules())
	}
	if marks {
		list = append(list, rl.markChains()...)
	}
	return list
}

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

// Chains of the marks. They come after those of everybody else that translate
// or look at marks (kube-proxy, CNI plugins, firewalld's reverse path check).
const (
	markChain       = "prerouting"
	markOutputChain = "output"
)

func afterNAT() *nftables.ChainPriority {
	return nftables.ChainPriorityRef(*nftables.ChainPriorityNATDest + 10)
}

// markChains are the chains that mark connections which entered by the host veth, and give
// packets of their answers the mark.
func (rl *ruleset) markChains() []ruleChain {
	return []ruleChain{
		{
			name: markChain, kind: nftables.ChainTypeFilter,
			hook: nftables.ChainHookPrerouting, priority: afterNAT(), rules: rl.markRules(),
		},
		// Of type route: a packet whose mark was changed is routed again.
		{
			name: markOutputChain, kind: nftables.ChainTypeRoute,
			hook: nftables.ChainHookOutput, priority: afterNAT(), rules: [][]expr.Any{rl.restoreMark()},
		},
	}
}

// markRules are the rules for arriving packets, in order.
func (rl *ruleset) markRules() [][]expr.Any {
	mac := rl.link.returnPathMAC()
	return [][]expr.Any{
		// Known: marked already, or a connection of the same addresses and
		// ports that the client made to the endpoint itself. The latter keeps its route.
		append(fromHostVeth(),
			&expr.Ct{Register: 1, Key: expr.CtKeyDIRECTION},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{0}}, // original
			&expr.Ct{Register: 1, Key: expr.CtKeySTATE},
			&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: native(expr.CtStateBitESTABLISHED), Xor: native(0)},
			&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: native(0)},
			&expr.Verdict{Kind: expr.VerdictReturn}),
		// New, or made by a packet of the endpoint's after the kernel had
		// forgotten it.
		append(append(fromHostVeth(), fromMAC(mac)...),
			&expr.Ct{Register: 1, Key: expr.CtKeyMARK},
			rl.orMark(),
			&expr.Ct{Register: 1, Key: expr.CtKeyMARK, SourceRegister: true}),
		append(fromHostVeth(), &expr.Verdict{Kind: expr.VerdictReturn}),
		rl.restoreMark(),
	}
}

// restoreMark gives packets of a marked connection the mark.
func (rl *ruleset) restoreMark() []expr.Any {
	return []expr.Any{
		&expr.Ct{Register: 1, Key: expr.CtKeyMARK},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: native(rl.mark), Xor: native(0)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: native(rl.mark)},
		&expr.Meta{Key: expr.MetaKeyMARK, Register: 1},
		rl.orMark(),
		&expr.Counter{},
		&expr.Meta{Key: expr.MetaKeyMARK, Register: 1, SourceRegister: true},
	}
}

// orMark sets the bits of the mark in register 1.
func (rl *ruleset) orMark() expr.Any {
	return &expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: native(^rl.mark), Xor: native(rl.mark)}
}

func fromHostVeth() []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: interfaceName(KernelEnd)},
	}
}

func fromMAC(mac [6]byte) []expr.Any {
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseLLHeader, Offset: 6, Len: 6},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: mac[:]},
	}
}

// native is a number as it stands in a register.
func native(v uint32) []byte { return binaryutil.NativeEndian.PutUint32(v) }

// interfaceName is a name as the kernel compares it.
func interfaceName(name string) []byte {
	b := make([]byte, unix.IFNAMSIZ)
	copy(b, name)
	return b
}
