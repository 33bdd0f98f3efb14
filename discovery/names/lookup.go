package names

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/miekg/dns"

	"github.com/weirlb/weir/discovery"
)

// records is a question to a server.
type records struct {
	host string
	kind uint16
}

// result is the last answer to it. Empty is an answer, too.
type result struct {
	addrs []netip.Addr
	ports []dns.SRV
}

// lookup asks all questions of a name once.
type lookup struct {
	ask   func(host string, kind uint16) (*dns.Msg, error)
	kept  map[records]result // of earlier lookups, for questions without an answer
	found map[records]result
	ttl   time.Duration // the shortest
	fault string        // of the first question without an answer
	more  bool          // there are more targets than are taken
}

// name returns the targets of a name, sorted, each once.
func (x *lookup) name(q discovery.NameQuestion) (out []netip.AddrPort) {
	x.found = map[records]result{}
	if q.Service == "" {
		for _, a := range x.host(q.Host) {
			out = append(out, netip.AddrPortFrom(a, 0))
		}
	} else {
		list := x.records(q.String(), dns.TypeSRV).ports
		if x.more = len(list) > maxRecords; x.more {
			list = list[:maxRecords]
		}
		for i := range list {
			for _, a := range x.host(strings.TrimSuffix(list[i].Target, ".")) {
				out = append(out, netip.AddrPortFrom(a, list[i].Port))
			}
		}
	}
	slices.SortFunc(out, netip.AddrPort.Compare)
	out = slices.Compact(out)
	if len(out) > maxAddresses {
		out, x.more = out[:maxAddresses], true
	}
	return out
}

// host returns the addresses of a host.
func (x *lookup) host(host string) []netip.Addr {
	if host == "" { // the service is not there (RFC 2782)
		return nil
	}
	return slices.Concat(x.records(host, dns.TypeA).addrs, x.records(host, dns.TypeAAAA).addrs)
}

// records asks a question, unless it was asked already. The last result is kept if there is no answer.
func (x *lookup) records(host string, kind uint16) result {
	k := records{host, kind}
	if known, ok := x.found[k]; ok {
		return known
	}
	m, err := x.ask(host, kind)
	if err != nil {
		x.fault = cmp.Or(x.fault, err.Error())
		if last, ok := x.kept[k]; ok {
			x.found[k] = last
		}
		return x.kept[k]
	}
	out, ttl := read(m, host, kind)
	x.found[k], x.ttl = out, min(x.ttl, ttl)
	return out
}

// read takes from an answer the records of a host, by way of its aliases, and the time for which it holds.
// Everything else in it is passed over.
func read(m *dns.Msg, host string, kind uint16) (out result, ttl time.Duration) {
	owner, seconds := dns.CanonicalName(host), uint32(maxTTL/time.Second)
	for range maxAliases { // in whatever order, perhaps in a loop
		i := slices.IndexFunc(m.Answer, func(rr dns.RR) bool {
			_, alias := rr.(*dns.CNAME)
			return alias && dns.CanonicalName(rr.Header().Name) == owner
		})
		if i < 0 {
			break
		}
		alias := m.Answer[i].(*dns.CNAME)
		owner, seconds = dns.CanonicalName(alias.Target), min(seconds, alias.Hdr.Ttl)
	}
	found := false
	for _, rr := range m.Answer {
		h := rr.Header()
		if h.Rrtype != kind || h.Class != dns.ClassINET || dns.CanonicalName(h.Name) != owner {
			continue
		}
		found, seconds = true, min(seconds, h.Ttl)
		switch rr := rr.(type) {
		case *dns.A:
			if a, ok := netip.AddrFromSlice(rr.A); ok && a.Unmap().Is4() {
				out.addrs = append(out.addrs, a.Unmap())
			}
		case *dns.AAAA:
			if a, ok := netip.AddrFromSlice(rr.AAAA); ok {
				out.addrs = append(out.addrs, a.Unmap())
			}
		case *dns.SRV:
			if rr.Port != 0 {
				out.ports = append(out.ports, dns.SRV{Priority: rr.Priority, Port: rr.Port, Target: dns.CanonicalName(rr.Target)})
			}
		}
	}
	// Kept in memory, so no more than counts: which are left must not depend on the order of the answer.
	slices.SortFunc(out.addrs, netip.Addr.Compare)
	out.addrs = slices.Compact(out.addrs)
	out.addrs = slices.Clone(out.addrs[:min(len(out.addrs), maxAddresses+1)])
	out.ports = preferred(out.ports)
	out.ports = slices.Clone(out.ports[:min(len(out.ports), maxRecords+1)])
	for _, rr := range m.Ns { // how long there is nothing: RFC 2308
		if soa, ok := rr.(*dns.SOA); ok && !found {
			seconds = min(seconds, soa.Hdr.Ttl, soa.Minttl)
		}
	}
	return out, time.Duration(seconds) * time.Second
}

// preferred are the records of the lowest priority, sorted.
func preferred(list []dns.SRV) []dns.SRV {
	slices.SortFunc(list, func(a, b dns.SRV) int {
		return cmp.Or(cmp.Compare(a.Priority, b.Priority), cmp.Compare(a.Target, b.Target), cmp.Compare(a.Port, b.Port))
	})
	for i := range list {
		if list[i].Priority != list[0].Priority {
			return list[:i]
		}
	}
	return list
}

// memory is what is remembered of a name between lookups.
type memory struct {
	records    map[records]result
	targets    []netip.AddrPort
	at         time.Time // when the DNS last gave all of them
	restored   bool      // they are of the process before, and the DNS has not answered every question since
	emptySince time.Time // zero: there were targets in the last answer
}

// settle makes the answer of a lookup.
func (m *memory) settle(targets []netip.AddrPort, x *lookup, own func() []netip.Addr, now time.Time) (out discovery.NameAnswer) {
	fault := func(format string, args ...any) { out.Faults = append(out.Faults, fmt.Sprintf(format, args...)) }
	var machine []netip.Addr
	if own != nil && len(targets)+len(m.targets) > 0 {
		machine = own()
	}
	// Whoever forges or filters answers has addresses such as 127.0.0.1: they are no answer that ends the last.
	good := slices.DeleteFunc(slices.Clone(targets), func(t netip.AddrPort) bool { return refusal(t.Addr(), machine) != "" })
	refused := len(targets) > 0 && len(good) == 0
	if m.restored = m.restored && (x.fault != "" || refused); !m.restored && len(targets) > 0 && !refused && (x.fault == "" || m.at.IsZero()) {
		m.at = now
	}
	switch {
	case m.restored: // records of before are not known, so a target without an answer may be of any question
		targets = slices.Concat(m.targets, targets)
		slices.SortFunc(targets, netip.AddrPort.Compare)
		targets = slices.Compact(targets)
		targets = targets[:min(len(targets), maxAddresses)]
	case refused:
		if m.emptySince = (time.Time{}); len(m.targets) > 0 {
			fault("the last answer is kept: all addresses of this one are refused")
		}
		targets = slices.Concat(m.targets, targets)
	case len(targets) > 0:
		m.targets, m.emptySince = good, time.Time{}
	case x.fault != "":
		targets = m.targets // nothing is known
	case len(m.targets) == 0:
		fault("it has no address")
	default:
		if m.emptySince.IsZero() {
			m.emptySince = now
		}
		if now.Sub(m.emptySince) < holdEmpty {
			targets = m.targets
			fault("it has no address any more; the last answer is kept for %v", holdEmpty)
		} else {
			m.targets, m.emptySince = nil, time.Time{}
			fault("it has no address")
		}
	}
	if x.fault != "" {
		text := "the last answer is kept"
		switch {
		case m.restored:
			text = "the last answer before the start is kept, of " + m.at.UTC().Format(time.RFC3339)
		case len(targets) == 0:
			text = "there is no answer yet"
		}
		fault("%s; %s", x.fault, text)
	}
	if x.more {
		fault("it has more than %d addresses or %d SRV records: others are not used", maxAddresses, maxRecords)
	}
	for _, t := range targets {
		if why := refusal(t.Addr(), machine); why != "" {
			fault("%s is refused: %s", t.Addr(), why)
		} else {
			out.Targets = append(out.Targets, t)
		}
	}
	return out
}

// refusal says why an address is no endpoint, "" if it may be one.
func refusal(a netip.Addr, machine []netip.Addr) string {
	if slices.Contains(machine, a) {
		return "it is an address of this node"
	}
	return discovery.SpecialAddr(a)
}
