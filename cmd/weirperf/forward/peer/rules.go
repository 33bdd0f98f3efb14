package peer

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// The rules, in the words of nft, for one UDP Service with two endpoints:
//
//	table ip kube-proxy {
//	  map service-ips { type ipv4_addr . inet_proto . inet_service : verdict
//	    elements = { 10.3.0.1 . udp . 80 : goto external-0 } }
//	  map no-endpoint-services, firewall-ips: alike, empty
//	  set cluster-ips { type ipv4_addr }, empty
//
//	  chain filter-prerouting-pre-dnat { hook prerouting -110; ct state new jump firewall-check }
//	  chain filter-input   { hook input -110;   ct state new jump service-endpoints-check }
//	  chain filter-forward { hook forward -110; ct state new jump service-endpoints-check
//	                                            ct state new jump cluster-ips-check }
//	  chain filter-output  { hook output -110;  ct state new jump service-endpoints-check
//	                                            ct state new jump firewall-check }
//	  chain nat-prerouting { hook prerouting dstnat; jump services }
//	  chain nat-output     { hook output -100; jump services }
//	  chain nat-postrouting { hook postrouting srcnat; jump masquerading }
//
//	  chain services { ip daddr . meta l4proto . th dport vmap @service-ips }
//	  chain external-0 { jump mark-for-masquerade; goto service-0 }
//	  chain service-0 { numgen random mod 2 vmap { 0 : goto endpoint-0-0, 1 : goto endpoint-0-1 } }
//	  chain endpoint-0-0 { ip saddr 10.64.0.1 jump mark-for-masquerade
//	                       meta l4proto udp dnat to 10.64.0.1:8080 }
//	  chain mark-for-masquerade { mark set mark or 0x4000 }
//	  chain masquerading { mark and 0x4000 == 0 return
//	                       mark set mark xor 0x4000
//	                       masquerade fully-random }
//	}
const (
	tableName      = "kube-proxy"
	masqueradeMark = 0x4000
)

// builder adds chains and rules to the table.
type builder struct {
	*nftables.Conn
	table *nftables.Table
}

// install makes the table, in a transaction with as much as a message may hold.
func install(c *nftables.Conn, services []Service) error {
	b := builder{c, &nftables.Table{Family: nftables.TableFamilyIPv4, Name: tableName}}
	b.AddTable(b.table)
	if err := b.frame(); err != nil {
		return err
	}
	for n, s := range services {
		if err := b.service(n, s); err != nil {
			return fmt.Errorf("nftables: %s %s: %w", s.Protocol, s.Frontend, err)
		}
	}
	return nil
}

// frame has the chains and maps that exist without any Service.
func (b builder) frame() error {
	mark := b.chain("mark-for-masquerade")
	b.rule(mark, load(expr.MetaKeyMARK), bits(^uint32(masqueradeMark), masqueradeMark), store(expr.MetaKeyMARK))
	masquerading := b.chain("masquerading")
	b.rule(masquerading, load(expr.MetaKeyMARK), bits(masqueradeMark, 0),
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: native(0)}, &expr.Verdict{Kind: expr.VerdictReturn})
	b.rule(masquerading, load(expr.MetaKeyMARK), bits(^uint32(0), masqueradeMark), store(expr.MetaKeyMARK))
	b.rule(masquerading, &expr.Masq{FullyRandom: true})

	for _, m := range []struct{ set, chain string }{
		{"service-ips", "services"}, {"no-endpoint-services", "service-endpoints-check"}, {"firewall-ips", "firewall-check"},
	} {
		set := b.destinations(m.set)
		if err := b.AddSet(set, nil); err != nil {
			return err
		}
		b.rule(b.chain(m.chain), dispatch(set)...)
	}
	clusterIPs := &nftables.Set{Table: b.table, Name: "cluster-ips", KeyType: nftables.TypeIPAddr}
	if err := b.AddSet(clusterIPs, nil); err != nil {
		return err
	}
	b.rule(b.chain("cluster-ips-check"), address(ipDestination), &expr.Lookup{SourceRegister: 1, SetName: clusterIPs.Name, SetID: clusterIPs.ID},
		&expr.Verdict{Kind: expr.VerdictDrop})
	b.hooks()
	return b.Flush()
}

// hooks are the base chains.
func (b builder) hooks() {
	const filterPriority = -110 // before destination NAT
	for _, h := range []struct {
		name  string
		kind  nftables.ChainType
		hook  *nftables.ChainHook
		jumps []string
	}{
		{"filter-prerouting-pre-dnat", nftables.ChainTypeFilter, nftables.ChainHookPrerouting, []string{"firewall-check"}},
		{"filter-input", nftables.ChainTypeFilter, nftables.ChainHookInput, []string{"service-endpoints-check"}},
		{"filter-forward", nftables.ChainTypeFilter, nftables.ChainHookForward, []string{"service-endpoints-check", "cluster-ips-check"}},
		{"filter-output", nftables.ChainTypeFilter, nftables.ChainHookOutput, []string{"service-endpoints-check", "firewall-check"}},
		{"nat-prerouting", nftables.ChainTypeNAT, nftables.ChainHookPrerouting, []string{"services"}},
		{"nat-output", nftables.ChainTypeNAT, nftables.ChainHookOutput, []string{"services"}},
		{"nat-postrouting", nftables.ChainTypeNAT, nftables.ChainHookPostrouting, []string{"masquerading"}},
	} {
		priority := nftables.ChainPriority(filterPriority)
		if h.kind == nftables.ChainTypeNAT {
			priority = *nftables.ChainPriorityNATDest
			if h.hook == nftables.ChainHookPostrouting {
				priority = *nftables.ChainPriorityNATSource
			}
		}
		chain := b.AddChain(&nftables.Chain{Name: h.name, Table: b.table, Type: h.kind, Hooknum: h.hook, Priority: &priority})
		for _, to := range h.jumps {
			var match []expr.Any
			if h.kind == nftables.ChainTypeFilter {
				match = newConnection()
			}
			b.rule(chain, append(match, &expr.Verdict{Kind: expr.VerdictJump, Chain: to})...)
		}
	}
}

// service makes the chains of Service n and enters it.
func (b builder) service(n int, s Service) error {
	proto := byte(unix.IPPROTO_UDP)
	if s.Protocol == TCP {
		proto = unix.IPPROTO_TCP
	}
	choice := &nftables.Set{Table: b.table, Anonymous: true, Constant: true, IsMap: true,
		KeyType: nftables.TypeInteger, DataType: nftables.TypeVerdict, KeyByteOrder: binaryutil.NativeEndian}
	var elements []nftables.SetElement
	for i, e := range s.Endpoints {
		name := fmt.Sprintf("endpoint-%d-%d", n, i)
		chain := b.chain(name)
		b.rule(chain, address(ipSource), &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: e.Addr().AsSlice()},
			&expr.Verdict{Kind: expr.VerdictJump, Chain: "mark-for-masquerade"})
		b.rule(chain, translateTo(proto, e)...)
		elements = append(elements, nftables.SetElement{Key: native(uint32(i)), VerdictData: jump(name)})
		// A message to the kernel has room for a few hundred rules.
		if i%64 == 63 {
			if err := b.Flush(); err != nil {
				return err
			}
		}
	}
	if err := b.AddSet(choice, elements); err != nil {
		return err
	}
	service := b.chain(fmt.Sprintf("service-%d", n))
	b.rule(service,
		&expr.Numgen{Register: 1, Modulus: uint32(len(s.Endpoints)), Type: unix.NFT_NG_RANDOM},
		&expr.Lookup{SourceRegister: 1, DestRegister: 0, IsDestRegSet: true, SetName: choice.Name, SetID: choice.ID})
	external := b.chain(fmt.Sprintf("external-%d", n))
	b.rule(external, &expr.Verdict{Kind: expr.VerdictJump, Chain: "mark-for-masquerade"})
	b.rule(external, jump(service.Name))

	key := append(s.Frontend.Addr().AsSlice(), proto, 0, 0, 0)
	key = binary.BigEndian.AppendUint16(key, s.Frontend.Port())
	key = append(key, 0, 0)
	err := b.SetAddElements(b.destinations("service-ips"), []nftables.SetElement{{Key: key, VerdictData: jump(external.Name)}})
	if err != nil {
		return err
	}
	return b.Flush()
}

// destinations is a map from address, protocol and port to a verdict.
func (b builder) destinations(name string) *nftables.Set {
	return &nftables.Set{Table: b.table, Name: name, IsMap: true, Concatenation: true, DataType: nftables.TypeVerdict,
		KeyType: nftables.MustConcatSetType(nftables.TypeIPAddr, nftables.TypeInetProto, nftables.TypeInetService)}
}

func (b builder) chain(name string) *nftables.Chain {
	return b.AddChain(&nftables.Chain{Name: name, Table: b.table})
}

func (b builder) rule(c *nftables.Chain, exprs ...expr.Any) {
	b.AddRule(&nftables.Rule{Table: b.table, Chain: c, Exprs: exprs})
}

// Offsets of the addresses in an IPv4 header.
const (
	ipSource      = 12
	ipDestination = 16
)

func address(offset uint32) expr.Any {
	return &expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: 4}
}

// dispatch looks destination, protocol and port up together: each takes a
// register of four bytes.
func dispatch(set *nftables.Set) []expr.Any {
	const second, third = unix.NFT_REG32_01, unix.NFT_REG32_02
	return []expr.Any{
		address(ipDestination),
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: second},
		&expr.Payload{DestRegister: third, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		&expr.Lookup{SourceRegister: 1, DestRegister: 0, IsDestRegSet: true, SetName: set.Name, SetID: set.ID},
	}
}

func translateTo(proto byte, e netip.AddrPort) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{proto}},
		&expr.Immediate{Register: 1, Data: e.Addr().AsSlice()},
		&expr.Immediate{Register: 2, Data: binary.BigEndian.AppendUint16(nil, e.Port())},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: unix.NFPROTO_IPV4, RegAddrMin: 1, RegProtoMin: 2, Specified: true},
	}
}

// newConnection is `ct state new`.
func newConnection() []expr.Any {
	return []expr.Any{
		&expr.Ct{Key: expr.CtKeySTATE, Register: 1},
		bits(expr.CtStateBitNEW, 0),
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: native(0)},
	}
}

func load(key expr.MetaKey) expr.Any  { return &expr.Meta{Key: key, Register: 1} }
func store(key expr.MetaKey) expr.Any { return &expr.Meta{Key: key, Register: 1, SourceRegister: true} }
func jump(chain string) *expr.Verdict { return &expr.Verdict{Kind: expr.VerdictGoto, Chain: chain} }

// bits is register = register and mask, xor value.
func bits(mask, value uint32) expr.Any {
	return &expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: native(mask), Xor: native(value)}
}

func native(v uint32) []byte { return binaryutil.NativeEndian.PutUint32(v) }
