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
func (h *Veth) markChains() []ruleChain {
	return []ruleChain{
		{
			name: markChain, kind: nftables.ChainTypeFilter,
			hook: nftables.ChainHookPrerouting, priority: afterNAT(), rules: h.markRules(),
		},
		// Of type route: a packet whose mark was changed is routed again.
		{
			name: markOutputChain, kind: nftables.ChainTypeRoute,
			hook: nftables.ChainHookOutput, priority: afterNAT(), rules: [][]expr.Any{h.restoreMark()},
		},
	}
}

// markRules are the rules for arriving packets, in order.
func (h *Veth) markRules() [][]expr.Any {
	mac := h.ReturnPathMAC()
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
			h.orMark(),
			&expr.Ct{Register: 1, Key: expr.CtKeyMARK, SourceRegister: true}),
		append(fromHostVeth(), &expr.Verdict{Kind: expr.VerdictReturn}),
		h.restoreMark(),
	}
}

// restoreMark gives packets of a marked connection the mark.
func (h *Veth) restoreMark() []expr.Any {
	return []expr.Any{
		&expr.Ct{Register: 1, Key: expr.CtKeyMARK},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: native(h.cfg.Mark), Xor: native(0)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: native(h.cfg.Mark)},
		&expr.Meta{Key: expr.MetaKeyMARK, Register: 1},
		h.orMark(),
		&expr.Counter{},
		&expr.Meta{Key: expr.MetaKeyMARK, Register: 1, SourceRegister: true},
	}
}

// orMark sets the bits of the mark in register 1.
func (h *Veth) orMark() expr.Any {
	return &expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: native(^h.cfg.Mark), Xor: native(h.cfg.Mark)}
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
