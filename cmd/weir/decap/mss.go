package decap

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// tableName is the nftables table, this command's alone.
const tableName = "weir-decap"

// TCP: the flags' offset in the header and the SYN bit; the option (RFC 9293).
const (
	flagsOffset = 13
	flagSYN     = 2
	optionMSS   = 2
)

// clampMSS has the kernel lower the segment size that this node announces from the
// addresses: packets of clients then fit the tunnel.
//
//	table inet weir-decap {
//		chain output {
//			type filter hook output priority mangle
//			ip saddr ADDRESS tcp flags syn tcp option maxseg size set MSS
//		}
//	}
//
// The kernel lowers only. A table that an earlier process left is replaced.
func clampMSS(addrs []netip.Addr, mss uint16) error {
	c, err := nftables.New()
	if err != nil {
		return fmt.Errorf("nftables: %w", err)
	}
	t := &nftables.Table{Family: nftables.TableFamilyINet, Name: tableName}
	c.AddTable(t) // so that deleting it is no error
	c.DelTable(t)
	c.AddTable(t)
	chain := c.AddChain(&nftables.Chain{Name: "output", Table: t, Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookOutput, Priority: nftables.ChainPriorityMangle})
	for _, a := range addrs {
		c.AddRule(&nftables.Rule{Table: t, Chain: chain, Exprs: clampFrom(a, mss)})
	}
	if err := c.Flush(); err != nil {
		return fmt.Errorf("nftables: table inet %s: %w (the kernel needs CONFIG_NF_TABLES_INET)", tableName, err)
	}
	return nil
}

// clampFrom is the rule for an address.
func clampFrom(a netip.Addr, mss uint16) []expr.Any {
	family, offset := byte(unix.NFPROTO_IPV4), uint32(12)
	if a.Is6() {
		family, offset = unix.NFPROTO_IPV6, 8
	}
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{family}},
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: uint32(a.BitLen() / 8)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: a.AsSlice()},
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{unix.IPPROTO_TCP}},
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: flagsOffset, Len: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 1, Mask: []byte{flagSYN}, Xor: []byte{0}},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: []byte{0}},
		&expr.Immediate{Register: 1, Data: binaryutil.BigEndian.PutUint16(mss)},
		&expr.Exthdr{SourceRegister: 1, Type: optionMSS, Offset: 2, Len: 2, Op: expr.ExthdrOpTcpopt},
	}
}

// unclampMSS removes the table.
func unclampMSS() error {
	c, err := nftables.New()
	if err != nil {
		return fmt.Errorf("nftables: %w", err)
	}
	c.DelTable(&nftables.Table{Family: nftables.TableFamilyINet, Name: tableName})
	if err := c.Flush(); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("nftables: remove table inet %s: %w", tableName, err)
	}
	return nil
}
