package hostveth

import (
	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
)

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
