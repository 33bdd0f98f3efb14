package config

import (
	"fmt"
	"math"
)

// validateMarkRule is about a routing rule by mark, and its table.
func validateMarkRule(r *report, markField string, mark Mark, tableField string, table int) {
	for _, bits := range []Mark{0x4000, 0x8000} {
		if mark&bits != 0 {
			r.addf(markField, "%s has a bit of kube-proxy's (%s)", mark, bits)
		}
	}
	// Beyond the kernel's own tables (253-255); those below 253 are free.
	if table < 1 || table >= 253 && table <= 255 || table > math.MaxUint32 {
		r.addf(tableField, "must be the number of an unused routing table, is %d", table)
	}
}

func validateHostVeth(c *Configuration, r *report) {
	h := &c.HostVeth
	validateMarkRule(r, "hostVeth.mark", h.Mark, "hostVeth.table", h.Table)
	validateMarkRule(r, "hostVeth.probeMark", h.ProbeMark, "hostVeth.probeTable", h.ProbeTable)
	if h.Mark&h.ProbeMark != 0 {
		r.addf("hostVeth.probeMark", "%s has a bit of hostVeth.mark (%s)", h.ProbeMark, h.Mark)
	}
	if h.Table == h.ProbeTable {
		r.addf("hostVeth.probeTable", "%d is hostVeth.table", h.Table)
	}
	var v4, v6 int
	for i, s := range c.HostVeth.Prefixes {
		path := fmt.Sprintf("hostVeth.prefixes[%d]", i)
		p, ok := checkPrefix(r, path, s)
		if !ok {
			continue
		}
		family, n, most := "IPv4", &v4, 29
		if p.Addr().Is6() {
			family, n, most = "IPv6", &v6, 125
		}
		if *n++; *n > 1 {
			r.addf(path, "%s is a second %s prefix: one per family", s, family)
		}
		if p.Bits() > most {
			r.addf(path, "%s is too small: /%d or shorter", s, most)
		}
		if a := p.Addr(); !a.IsGlobalUnicast() && !(a.Is4() && a.IsLinkLocalUnicast()) {
			r.addf(path, "%s cannot be routed inside the node", s)
		}
	}
}
