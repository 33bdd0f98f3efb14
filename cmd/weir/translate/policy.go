package translate

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/weirlb/weir/cmd/weir/config"
	"github.com/weirlb/weir/cmd/weir/problem"
	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/discovery"
	"github.com/weirlb/weir/lb/table"
)

// Supported has the features that the packet path honors beyond the plain Service. A
// Service that needs more stays with the kernel.
const Supported = discovery.FeatureSourceRanges | discovery.FeatureClientIPAffinity |
	discovery.FeatureDNAT | discovery.FeatureL2DSR | discovery.FeatureIPIP | discovery.FeatureGUE |
	discovery.FeatureQUICConnectionID | discovery.FeatureMSSClamp | discovery.FeatureSCTP

// modes are the values of weir.dev/forwarding-mode.
var modes = map[string]conntrack.Mode{
	"nat":   conntrack.ModeNAT,
	"dnat":  conntrack.ModeDNAT,
	"l2dsr": conntrack.ModeL2DSR,
	"ipip":  conntrack.ModeIPIP,
	"gue":   conntrack.ModeGUE,
}

// Mode is the mode of that name, ModeNAT for an unknown name.
func Mode(name string) conntrack.Mode { return cmp.Or(modes[name], conntrack.ModeNAT) }

// mode is how a Service's packets are forwarded.
func (t *Translator) mode(svc *discovery.Service) conntrack.Mode {
	if m, ok := modes[svc.Options.ForwardingMode]; ok {
		return m
	}
	return t.opts.Mode
}

// algorithm is how a Service's endpoints are chosen.
func (t *Translator) algorithm(svc *discovery.Service) table.Algorithm {
	switch svc.Options.Algorithm {
	case discovery.AlgorithmMaglev:
		return table.Maglev
	case discovery.AlgorithmRandom:
		return table.Random
	case discovery.AlgorithmLeastConn:
		return table.LeastConn
	}
	if t.opts.Random {
		return table.Random
	}
	return table.Maglev
}

var removals = [...]table.Removal{
	discovery.RemovalKeep:  table.Keep,
	discovery.RemovalReset: table.ResetFlows,
	discovery.RemovalDrop:  table.DropFlows,
}

// denyLists are the lists that the Service names, a bit for each. It returns false if the node lacks one:
// the Service would be more open than written.
func (s *translation) denyLists() (lists uint16, ok bool) {
	if s.svc.Options.DenyLists == "" {
		return 0, true
	}
	ok = true
	for name := range strings.SplitSeq(s.svc.Options.DenyLists, ",") {
		i := slices.IndexFunc(s.t.opts.DenyLists, func(l config.DenyList) bool { return l.Name == name })
		if i < 0 {
			s.complain(problem.UnsupportedField, "metadata.annotations["+discovery.AnnotationDenyLists+"]",
				"denyLists of the configuration has no list %q: the Service is left to the kernel", name)
			ok = false
			continue
		}
		lists |= 1 << i
	}
	return lists, ok
}

// policy has the options of a Service for the packet path, nil without any.
func policy(svc *discovery.Service, lists uint16) *table.Policy {
	o := &svc.Options
	p := table.Policy{
		SourceRanges:            svc.SourceRanges,
		OnRemoval:               removals[o.OnRemoval],
		MaxConnections:          o.MaxConnections,
		NewConnectionsPerSecond: o.NewConnectionsPerSecond,
		QUICConnectionID:        table.QUICConnectionID(o.QUICConnectionID),
		MSSClamp:                o.MSSClamp,
		DenyLists:               lists,
	}
	if len(p.SourceRanges) == 0 && p.OnRemoval == table.Keep && p.MaxConnections == 0 &&
		p.NewConnectionsPerSecond == 0 && p.QUICConnectionID.Length == 0 && p.MSSClamp == 0 && lists == 0 {
		return nil
	}
	return &p
}

// WarmUp is the slow start of endpoints that come back from an ejection.
const WarmUp = 10 * time.Second

// slowStart is the Service's, in ticks of the flow table.
func (t *Translator) slowStart(svc *discovery.Service) uint32 {
	const tick = time.Second / conntrack.TicksPerSecond
	long := svc.Options.SlowStart
	if long < WarmUp && t.opts.WarmsUp != nil && t.opts.WarmsUp(svc.Name) {
		long = WarmUp
	}
	return uint32((long + tick - 1) / tick)
}
