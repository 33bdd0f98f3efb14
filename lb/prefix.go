package lb

import "github.com/weirlb/weir/lb/ratelimit"

// openPrefixes makes the limit of new connections per source prefix. Its 2 MiB take memory
// once there is a limit.
func (l *LB) openPrefixes() {
	seed := l.flows.Seed()
	l.prefixes = ratelimit.NewPrefixes([2]uint64{seed[0], seed[3]})
	l.prefixes.Set(l.cfg.PrefixLimit)
}

// LimitPrefixes changes the limit of new connections per source prefix.
func (l *LB) LimitPrefixes(limit ratelimit.PrefixLimit) { l.prefixes.Set(limit) }
