package hostport

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// tableName is the nftables table, Weir's alone.
const (
	tableName = "weir"
	chainName = "postrouting"
)

// masquerade has packets from the forward sources masqueraded where they
// leave by another interface than the host port:
//
//	table inet weir {
//		chain postrouting {
//			type nat hook postrouting priority srcnat
//			ip saddr 169.254.77.3 oifname != "weir-host" masquerade
//			ip6 saddr fd77:7765:6972::3 oifname != "weir-host" masquerade
//		}
//	}
//
// An existing table of the name is replaced in the same transaction.
func masquerade(sources ...netip.Addr) error {
	c, err := nftables.New()
	if err != nil {
		return fmt.Errorf("nftables: %w", err)
	}
	t := &nftables.Table{Family: nftables.TableFamilyINet, Name: tableName}
	c.AddTable(t) // so that deleting it is no error
	c.DelTable(t)
	c.AddTable(t)
	chain := c.AddChain(&nftables.Chain{
		Name: chainName, Table: t, Type: nftables.ChainTypeNAT,
		Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityNATSource,
	})
	for _, a := range sources {
		if a.IsValid() {
			c.AddRule(&nftables.Rule{Table: t, Chain: chain, Exprs: masqueradeFrom(a)})
		}
	}
	if err := c.Flush(); err != nil {
		return fmt.Errorf("nftables: table inet %s: %w%s", tableName, err, masqueradeHint(err))
	}
	return nil
}

// masqueradeHint says what is missing where the kernel cannot masquerade.
func masqueradeHint(err error) string {
	for _, missing := range []error{unix.ENOENT, unix.EOPNOTSUPP, unix.EPROTONOSUPPORT, unix.EAFNOSUPPORT} {
		if errors.Is(err, missing) {
			return ": the kernel needs nf_tables, nf_conntrack, nf_nat and nft_masq (CONFIG_NF_TABLES_INET, CONFIG_NF_CONNTRACK, CONFIG_NFT_NAT, CONFIG_NFT_MASQ)"
		}
	}
	return ""
}

// masquerades says whether the rules are there, one per source.
func masquerades(rules int) (bool, error) {
	c, err := nftables.New()
	if err != nil {
		return false, fmt.Errorf("nftables: %w", err)
	}
	t := &nftables.Table{Family: nftables.TableFamilyINet, Name: tableName}
	have, err := c.GetRules(t, &nftables.Chain{Name: chainName, Table: t})
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("nftables: list table inet %s: %w", tableName, err)
	}
	return len(have) == rules, nil
}

// warnForwardPolicy tells of chains that drop what is forwarded unless a rule
// accepts it, as Docker and firewalld leave them: a rule of Weir's cannot
// overrule them.
func (h *HostPort) warnForwardPolicy() {
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
			h.log.Warn("a firewall chain drops forwarded packets by policy: it must accept those from and to the host port, or endpoints behind the kernel get no traffic",
				"table", ch.Table.Name, "chain", ch.Name, "interface", KernelEnd)
		}
	}
}

// masqueradeFrom is the rule for one source address.
func masqueradeFrom(a netip.Addr) []expr.Any {
	family, offset := byte(unix.NFPROTO_IPV4), uint32(12)
	if a.Is6() {
		family, offset = unix.NFPROTO_IPV6, 8
	}
	name := make([]byte, unix.IFNAMSIZ)
	copy(name, KernelEnd)
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{family}},
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: uint32(a.BitLen() / 8)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: a.AsSlice()},
		&expr.Meta{Key: expr.MetaKeyOIFNAME, Register: 1},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: name},
		&expr.Counter{},
		&expr.Masq{},
	}
}

// unmasquerade removes the table. None there, or no nftables, is no error.
func unmasquerade() error {
	c, err := nftables.New()
	if err != nil {
		return nil
	}
	tables, err := c.ListTablesOfFamily(nftables.TableFamilyINet)
	if err != nil {
		return nil // the kernel has no nftables, so no table either
	}
	for _, t := range tables {
		if t.Name == tableName {
			c.DelTable(t)
			if err := c.Flush(); err != nil && !errors.Is(err, unix.ENOENT) {
				return fmt.Errorf("nftables: remove table inet %s: %w", tableName, err)
			}
		}
	}
	return nil
}
