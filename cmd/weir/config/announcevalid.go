package config

import (
	"cmp"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/util/validation"
)

const maxUint32 = 1<<32 - 1

func validateAnnounce(c *Configuration, r *report) {
	a := &c.Announce
	const at = "announce."
	switch a.Speaker {
	case AnnounceOff:
		if !a.On() {
			return // the rest may be prepared
		}
	case AnnounceBGP, AnnounceKernel:
	default:
		r.addf(at+"speaker", "must be %s, %s or %s, is %q", AnnounceOff, AnnounceBGP, AnnounceKernel, a.Speaker)
		return
	}
	number := func(name string, n, lo, hi int) { r.number(at+name, n, lo, hi) }
	a.L2.validate(r)
	if len(a.Prefixes) == 0 && !a.HasObjects() && !a.anyPrefix() {
		r.addf(at+"prefixes", "must have the prefixes whose addresses may be announced")
	}
	for i, p := range a.Prefixes {
		checkPrefix(r, fmt.Sprintf("%sprefixes[%d]", at, i), p)
		a.checkAggregate(r, p)
	}
	if a.HonorCordon && c.Discovery.Kubernetes == nil {
		r.addf(at+"honorCordon", "needs discovery.kubernetes: manifests say nothing of a cordon")
	}
	number("maxAddresses", a.MaxAddresses, 1, 1_000_000)
	number("aggregateIPv4", a.AggregateIPv4, 0, 32)
	number("aggregateIPv6", a.AggregateIPv6, 0, 128)
	number("settleSeconds", a.SettleSeconds, 0, 60)
	number("emptySeconds", a.EmptySeconds, 0, 3600)
	number("lingerMilliseconds", a.LingerMilliseconds, 0, 60_000)
	number("drainSeconds", a.DrainSeconds, 0, 3600)
	number("resetAfterSeconds", a.ResetAfterSeconds, 0, 3600)
	switch a.Speaker {
	case AnnounceKernel:
		validateKernelSpeaker(c, r)
	case AnnounceOff: // L2Advertisements
		validateObjects(c, r)
	case AnnounceBGP:
		validateSessions(c, r)
		validatePeers(c, r)
	}
}

// validate looks at the announcement on links.
func (l *L2) validate(r *report) {
	const at = "announce.l2."
	for i, name := range l.Interfaces {
		field := fmt.Sprintf("%sinterfaces[%d]", at, i)
		switch {
		case name == "" || len(name) >= unix.IFNAMSIZ || strings.ContainsAny(name, "/ "):
			r.addf(field, "%q is no name of an interface", name)
		case slices.Contains(l.Interfaces[:i], name):
			r.addf(field, "%q is there twice", name)
		}
	}
	if l.KeyFile != "" && !filepath.IsAbs(l.KeyFile) {
		r.addf(at+"keyFile", noSecretFile)
	}
}

// validateSessions looks at what speaker bgp has alone.
func validateSessions(c *Configuration, r *report) {
	a := &c.Announce
	const at = "announce."
	number := func(name string, n, lo, hi int) { r.number(at+name, n, lo, hi) }
	if a.ASN != 0 || len(a.Peers) > 0 || !a.HasObjects() {
		number("asn", a.ASN, 1, maxUint32-1)
	}
	if id, err := netip.ParseAddr(a.RouterID); a.RouterID != "" && (err != nil || !id.Is4() || id.IsUnspecified()) {
		r.addf(at+"routerID", "%q is not an IPv4 address", a.RouterID)
	}
	if len(a.Peers) == 0 && !a.HasObjects() {
		r.addf(at+"peers", "must have at least one router")
	}
	validateObjects(c, r)
	for i, s := range a.Communities {
		if _, ok := community(s, 2, 16); !ok {
			r.addf(fmt.Sprintf("%scommunities[%d]", at, i), "%q is not a community such as 64512:100", s)
		}
	}
	for i, s := range a.LargeCommunities {
		if _, ok := community(s, 3, 32); !ok {
			r.addf(fmt.Sprintf("%slargeCommunities[%d]", at, i), "%q is not a large community such as 64512:1:2", s)
		}
	}
	for name, n := range map[string]*int{"med": a.MED, "localPref": a.LocalPref} {
		if n != nil {
			number(name, *n, 0, maxUint32)
		}
	}
	number("prepend", a.Prepend, 0, 16)
}

// validateObjects looks at the objects of files and of the API server.
func validateObjects(c *Configuration, r *report) {
	for i, o := range c.Announce.Objects {
		if !filepath.IsAbs(o) {
			r.addf(fmt.Sprintf("announce.objects[%d]", i), "%q must be an absolute path", o)
		}
	}
	validateObjectSource(c, r)
}

// validateObjectSource looks at the objects of the API server.
func validateObjectSource(c *Configuration, r *report) {
	a := &c.Announce
	const at = "announce."
	all := slices.Contains(a.ObjectNamespaces, "*")
	if len(a.ObjectNamespaces) > 0 && c.Discovery.Kubernetes == nil {
		r.addf(at+"objectNamespaces", "needs discovery.kubernetes: objects of files are announce.objects")
	}
	if all && len(a.ObjectNamespaces) > 1 {
		r.addf(at+"objectNamespaces", "* is all namespaces, and must be alone")
	}
	for i, n := range a.ObjectNamespaces {
		if n != "*" && len(validation.IsDNS1123Label(n)) > 0 {
			r.addf(fmt.Sprintf("%sobjectNamespaces[%d]", at, i), "%q is no namespace", n)
		}
	}
	if len(a.ObjectSecrets) > 0 && (all || len(a.ObjectNamespaces) == 0) {
		r.addf(at+"objectSecrets", "needs objectNamespaces, with names of namespaces")
	}
	for i, n := range a.ObjectSecrets {
		if len(validation.IsDNS1123Subdomain(n)) > 0 {
			r.addf(fmt.Sprintf("%sobjectSecrets[%d]", at, i), "%q is no name of a Secret", n)
		}
	}
}

// validateKernelSpeaker looks at what speaker kernel has, and refuses what it would not do.
func validateKernelSpeaker(c *Configuration, r *report) {
	a := &c.Announce
	const at = "announce."
	r.number(at+"kernelTable", a.KernelTable, 1, maxUint32)
	if t := a.KernelTable; t >= unix.RT_TABLE_DEFAULT && t <= unix.RT_TABLE_LOCAL || t == c.HostVeth.Table || t == c.HostVeth.ProbeTable {
		r.addf(at+"kernelTable", "%d is a table of another use", t)
	}
	r.number(at+"kernelProtocol", a.KernelProtocol, 5, 255) // up to 4 the kernel's own
	for name, given := range map[string]bool{
		"peers": len(a.Peers) > 0, "objects": len(a.Objects) > 0, "objectNamespaces": len(a.ObjectNamespaces) > 0, "communities": len(a.Communities) > 0,
		"largeCommunities": len(a.LargeCommunities) > 0, "med": a.MED != nil, "localPref": a.LocalPref != nil, "prepend": a.Prepend > 0,
	} {
		if given {
			r.addf(at+name, "is not for speaker kernel: the routing daemon has it")
		}
	}
}

// number complains of a number that is not in a range.
func (r *report) number(path string, n, lo, hi int) {
	if n < lo || n > hi {
		r.addf(path, "must be %d to %d, is %d", lo, hi, n)
	}
}

// checkAggregate complains of routes that reach beyond a prefix of Prefixes.
func (a *Announce) checkAggregate(r *report, text string) {
	p, err := netip.ParsePrefix(text)
	if err != nil {
		return // checkPrefix says so
	}
	name, bits := "announce.aggregateIPv6", a.AggregateIPv6
	if p.Addr().Is4() {
		name, bits = "announce.aggregateIPv4", a.AggregateIPv4
	}
	if bits > 0 && bits < p.Bits() {
		r.addf(name, "must be 0 or at least %d: %s is not in announce.prefixes", p.Bits(), netip.PrefixFrom(p.Addr(), bits).Masked())
	}
}

func validatePeers(c *Configuration, r *report) {
	seen := map[string]bool{}
	for i := range c.Announce.Peers {
		p := &c.Announce.Peers[i]
		at := fmt.Sprintf("announce.peers[%d]", i)
		name := p.Address
		switch a, err := netip.ParseAddr(p.Address); {
		case p.Address == "" && p.Interface == "":
			r.addf(at, "must have address or interface")
		case p.Address != "" && p.Interface != "":
			r.addf(at, "has both address and interface: give one")
		case p.Interface != "":
			name = p.Interface
			if len(p.Interface) > maxInterfaceName {
				r.addf(at+".interface", "%q cannot be the name of an interface", p.Interface)
			}
		case err != nil || a.Zone() != "" || a.Is4In6() || a.IsUnspecified() || a.IsMulticast():
			r.addf(at+".address", "%q is not the address of a router; for link-local addresses give interface", p.Address)
		}
		if name != "" && seen[name] {
			r.addf(at, "%s is listed twice", name)
		}
		seen[name] = true
		if p.ASN < 1 || p.ASN >= maxUint32 {
			r.addf(at+".asn", "must be 1 to %d, is %d", maxUint32-1, p.ASN)
		}
		if p.Port < 0 || p.Port > 65535 {
			r.addf(at+".port", "must be 0 (179) to 65535, is %d", p.Port)
		}
		if p.PasswordFile != "" && !filepath.IsAbs(p.PasswordFile) {
			r.addf(at+".passwordFile", noSecretFile)
		}
		if s, err := netip.ParseAddr(p.SourceAddress); p.SourceAddress != "" && (err != nil || !s.IsGlobalUnicast()) {
			r.addf(at+".sourceAddress", "%q is not an address of this node", p.SourceAddress)
		}
		if h := p.HoldSeconds; h != 0 && (h < 3 || h > 65535) {
			r.addf(at+".holdSeconds", "must be 0 (9) or 3 to 65535 (RFC 4271), is %d", h)
		}
		if k := p.KeepaliveSeconds; k < 0 || k > 0 && time.Duration(k)*time.Second >= p.Hold() {
			r.addf(at+".keepaliveSeconds", "must be 0 or less than holdSeconds, is %d", k)
		}
		if t := p.MultihopTTL; t < 0 || t > 255 || t > 0 && p.ASN == c.Announce.ASN {
			r.addf(at+".multihopTTL", "must be 0 to 255, and 0 for a router with announce.asn, is %d", t)
		}
		if p.ASN == c.Announce.ASN && c.Announce.Prepend > 0 {
			r.addf("announce.prepend", "must be 0: %s has announce.asn (iBGP), and takes a path with its own number for a loop; use localPref or med", at)
		}
		p.validateBFD(r, at)
		p.validateRestart(r, at, c.Announce.SettleSeconds)
	}
}

// validateRestart refuses graceful restart beside BFD, which tells that the node is dead: a router
// keeps the routes all the same. It refuses a time of which the half, when the session begins at the
// latest, is over before addresses have settled: the router would drop the routes that it has kept.
func (p *Peer) validateRestart(r *report, at string, settle int) {
	g := p.GracefulRestart
	if g == nil {
		return
	}
	if p.BFD != nil {
		r.addf(at+".gracefulRestart", "cannot be used with bfd: the router would keep the routes to a node that BFD has found dead; give one")
	}
	if g.Seconds < 0 || g.Seconds > longestRestart {
		r.addf(at+".gracefulRestart.seconds", "must be 0 (%d) to %d, is %d", defaultRestart, longestRestart, g.Seconds)
		return
	}
	if least := 2*settle + 3; cmp.Or(g.Seconds, defaultRestart) < least {
		r.addf(at+".gracefulRestart.seconds", "must be at least %d with announce.settleSeconds %d: routes that are kept would be dropped before they are announced", least, settle)
	}
}

// validateBFD refuses BFD where it would not be what the configuration says: packets go to a
// router on a link, from the kernel's choice of address.
func (p *Peer) validateBFD(r *report, at string) {
	b := p.BFD
	if b == nil {
		return
	}
	const only = "cannot be used with %s: BFD is for a router on a link, which has address alone"
	switch {
	case p.MultihopTTL > 0:
		r.addf(at+".bfd", only, "multihopTTL")
	case p.Interface != "":
		r.addf(at+".bfd", only, "interface")
	case p.SourceAddress != "":
		r.addf(at+".bfd", only, "sourceAddress")
	}
	if i := b.IntervalMilliseconds; i != 0 && (i < shortestBFDInterval || i > 60_000) {
		r.addf(at+".bfd.intervalMilliseconds", "must be 0 (%d) or %d to 60000, is %d", defaultBFDInterval, shortestBFDInterval, i)
	}
	if m := b.Multiplier; m != 0 && (m < 2 || m > 255) {
		r.addf(at+".bfd.multiplier", "must be 0 (%d) or 2 to 255, is %d", defaultBFDMultiplier, m)
	}
}
