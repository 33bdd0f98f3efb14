package kubeproxy

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// nftTable is the table of kube-proxy, in the families ip and ip6.
const nftTable = "kube-proxy"

// nftReader follows the rules of a table. Rules for all clients count: those that ask for the
// source, or for the interface, are for pods, for the node, or for session affinity, whose
// endpoints other rules have too.
type nftReader struct {
	conn    *nftables.Conn
	table   *nftables.Table
	addrLen int
	chains  map[string][]netip.AddrPort // followed already
}

func readNFTables(to *Rules) error {
	conn, err := nftables.New(nftables.AsLasting())
	if err != nil {
		return fmt.Errorf("nftables: %w", err)
	}
	defer func() { _ = conn.CloseLasting() }() // nothing was written
	for family, addrLen := range map[nftables.TableFamily]int{nftables.TableFamilyIPv4: 4, nftables.TableFamilyIPv6: 16} {
		tables, err := conn.ListTablesOfFamily(family)
		if err != nil {
			return fmt.Errorf("nftables: %w", err)
		}
		at := slices.IndexFunc(tables, func(t *nftables.Table) bool { return t.Name == nftTable })
		if at < 0 {
			continue
		}
		r := &nftReader{conn: conn, table: tables[at], addrLen: addrLen, chains: map[string][]netip.AddrPort{}}
		if err := r.read(to); err != nil {
			return fmt.Errorf("nftables, table %s: %w", nftTable, err)
		}
	}
	return nil
}

// Maps of kube-proxy from frontends to verdicts, and whether their keys have addresses.
var nftMaps = []struct {
	name      string
	addresses bool
	refused   bool // no connection is taken
}{
	{"no-endpoint-services", true, true}, {"no-endpoint-nodeports", false, true},
	{"service-ips", true, false}, {"service-nodeports", false, false},
}

// nftNodePorts is the set of addresses that have node ports. It is empty if all addresses of the
// node do.
const nftNodePorts = "nodeport-ips"

func (r *nftReader) read(to *Rules) error {
	addresses, err := r.elements(nftNodePorts)
	if err != nil {
		return err
	}
	for _, e := range addresses {
		if a, ok := netip.AddrFromSlice(e.Key); ok {
			to.NodePorts = append(to.NodePorts, a)
		}
	}
	for _, m := range nftMaps {
		elements, err := r.elements(m.name)
		if err != nil {
			return err
		}
		for _, e := range elements {
			f, ok := r.frontend(e.Key, m.addresses)
			chain := verdictChain(e.Val)
			if !ok {
				return fmt.Errorf("map %s: a key of %d bytes", m.name, len(e.Key))
			}
			if m.refused || chain == "" {
				to.Frontends[f] = Target{}
				continue
			}
			endpoints, err := r.follow(chain, 0)
			if err != nil {
				return err
			}
			if _, refused := to.Frontends[f]; !refused || len(endpoints) > 0 {
				to.Frontends[f] = Target{External: strings.HasPrefix(chain, "external-"), Endpoints: endpoints}
			}
		}
	}
	return nil
}

// elements are those of a set, none where there is no such set.
func (r *nftReader) elements(name string) ([]nftables.SetElement, error) {
	set, err := r.conn.GetSetByName(r.table, name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("set %s: %w", name, err)
	}
	elements, err := r.conn.GetSetElements(set)
	if err != nil {
		return nil, fmt.Errorf("set %s: %w", name, err)
	}
	return elements, nil
}

// frontend reads a key: address, protocol and port, each filled up to four bytes.
func (r *nftReader) frontend(key []byte, address bool) (Frontend, bool) {
	f := Frontend{IPv6: r.addrLen == 16}
	if address {
		if len(key) < r.addrLen {
			return f, false
		}
		f.Addr, _ = netip.AddrFromSlice(key[:r.addrLen])
		key = key[r.addrLen:]
	}
	if len(key) < 6 {
		return f, false
	}
	f.Protocol, f.Port = protocolName(key[0]), binary.BigEndian.Uint16(key[4:])
	return f, true
}

func protocolName(n byte) string {
	switch n {
	case unix.IPPROTO_TCP:
		return "TCP"
	case unix.IPPROTO_UDP:
		return "UDP"
	case unix.IPPROTO_SCTP:
		return "SCTP"
	}
	return fmt.Sprintf("protocol %d", n)
}

// verdictChain is the chain that a verdict leads to, "" for drop and the like. The library
// leaves the verdict as it came: nested attributes.
func verdictChain(val []byte) string {
	attrs, err := nl.ParseRouteAttr(val)
	if err != nil {
		return ""
	}
	for _, a := range attrs {
		if a.Attr.Type&nl.NLA_TYPE_MASK == unix.NFTA_VERDICT_CHAIN {
			return strings.TrimRight(string(a.Value), "\x00")
		}
	}
	return ""
}

// maxDepth bounds the chains on a path: kube-proxy has four.
const maxDepth = 16

// follow returns the endpoints that a chain leads to.
func (r *nftReader) follow(chain string, depth int) ([]netip.AddrPort, error) {
	if found, ok := r.chains[chain]; ok || depth > maxDepth {
		return found, nil
	}
	rules, err := r.conn.GetRules(r.table, &nftables.Chain{Table: r.table, Name: chain})
	if err != nil {
		return nil, fmt.Errorf("chain %s: %w", chain, err)
	}
	var all []netip.AddrPort
	for _, rule := range rules {
		if r.asksForSource(rule) {
			continue
		}
		found, err := r.rule(rule, depth)
		if err != nil {
			return nil, err
		}
		all = append(all, found...)
	}
	all = sorted(all)
	r.chains[chain] = all
	return all, nil
}

// asksForSource reports whether a rule is only for some clients.
func (r *nftReader) asksForSource(rule *nftables.Rule) bool {
	source := uint32(12) // offset of the source address in the header
	if r.addrLen == 16 {
		source = 8
	}
	return slices.ContainsFunc(rule.Exprs, func(e expr.Any) bool {
		switch e := e.(type) {
		case *expr.Payload:
			return e.Base == expr.PayloadBaseNetworkHeader && e.Offset == source
		case *expr.Meta:
			return e.Key == expr.MetaKeyIIFNAME || e.Key == expr.MetaKeyIIF
		case *expr.Fib:
			return e.FlagSADDR
		}
		return false
	})
}

// rule returns the endpoints that a rule leads to: by another chain, by a map to chains or
// to endpoints, or by itself.
func (r *nftReader) rule(rule *nftables.Rule, depth int) (all []netip.AddrPort, err error) {
	registers := map[uint32][]byte{}
	for _, e := range rule.Exprs {
		var found []netip.AddrPort
		switch e := e.(type) {
		case *expr.Immediate:
			registers[e.Register] = e.Data
		case *expr.Verdict:
			if e.Chain != "" {
				found, err = r.follow(e.Chain, depth+1)
			}
		case *expr.Lookup:
			if e.IsDestRegSet {
				found, err = r.lookup(e, depth)
			}
		case *expr.NAT:
			if ap, ok := addrPort(registers[e.RegAddrMin], registers[e.RegProtoMin]); ok && e.Type == expr.NATTypeDestNAT {
				found = []netip.AddrPort{ap}
			}
		}
		if err != nil {
			return nil, err
		}
		all = append(all, found...)
	}
	return all, nil
}

// lookup returns the endpoints of a map.
func (r *nftReader) lookup(e *expr.Lookup, depth int) (all []netip.AddrPort, err error) {
	elements, err := r.elements(e.SetName)
	if err != nil {
		return nil, err
	}
	for _, el := range elements {
		if e.DestRegister != unix.NFT_REG_VERDICT {
			if len(el.Val) >= r.addrLen {
				if ap, ok := addrPort(el.Val[:r.addrLen], el.Val[r.addrLen:]); ok {
					all = append(all, ap)
				}
			}
			continue
		}
		if chain := verdictChain(el.Val); chain != "" {
			found, err := r.follow(chain, depth+1)
			if err != nil {
				return nil, err
			}
			all = append(all, found...)
		}
	}
	return all, nil
}

// addrPort reads an address, and a port in the first two bytes.
func addrPort(addr, port []byte) (netip.AddrPort, bool) {
	a, ok := netip.AddrFromSlice(addr)
	if !ok || len(port) < 2 {
		return netip.AddrPort{}, false
	}
	return netip.AddrPortFrom(a, binary.BigEndian.Uint16(port)), true
}
