package lb

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/weirlb/weir/lb/device"
)

// absence is a configured interface by which no packet is taken, although it
// was attached at the start.
type absence struct {
	since  time.Time
	reason string
	host   bool // the host veth, which only a new process makes again
}

// noteAbsent keeps the account of configured interfaces without a port.
func (l *LB) noteAbsent(v *linkView) {
	for _, in := range l.cfg.Interfaces {
		at := slices.IndexFunc(l.ifaces, func(i *iface) bool {
			return i.of == in.Name && i.as != 0 && i.stage == open && i.carrier(l).attachment != nil && !l.severed(i.carrier(l))
		})
		if at < 0 {
			l.setAbsent(in.Name, l.whyAbsent(in.Name, v), false)
			continue
		}
		if a, was := l.absent[in.Name]; was {
			delete(l.absent, in.Name)
			l.retract(WarnInterfaceGone, in.Name)
			l.publishAbsent()
			c := l.ifaces[at].carrier(l)
			l.log.Info("interface is attached again", "interface", in.Name, "mode", l.granted(c), "queues", c.queues, "after", time.Since(a.since).Round(time.Millisecond))
		}
	}
}

// attaching is the reason that holds for a moment when all is well.
const attaching = "is gone and back, and about to be attached"

// whyAbsent says why an interface has no port.
func (l *LB) whyAbsent(name string, v *linkView) string {
	i := slices.IndexFunc(v.links, func(d device.Link) bool { return d.Name == name })
	if i < 0 {
		return "is gone: it is attached again when it is back"
	}
	for _, p := range v.ports[name] {
		d := link(v.links, p.Device)
		if r, ok := l.refused[p.Device]; ok {
			return "is gone and back, but cannot be attached: " + r.err
		}
		if !d.Enabled {
			return fmt.Sprintf("is gone and back, but %s is down: bring it up", d.Name)
		}
	}
	if err := v.errs[name]; err != nil {
		return "is gone and back, but cannot be attached: " + err.Error()
	}
	return attaching
}

func (l *LB) setAbsent(name, reason string, host bool) {
	a, was := l.absent[name]
	if was && a.reason == reason {
		return
	}
	if !was {
		a.since = time.Now()
	}
	a.reason, a.host = reason, host
	l.absent[name] = a
	l.publishAbsent()
	if !was || reason != attaching {
		l.warnOnly(WarnInterfaceGone, name, reason)
	}
}

// Absence is why traffic is not taken on some interface.
type Absence struct {
	Reason string
	// Final is true when only a new process can mend it.
	Final bool
}

// publishAbsent lets Absent answer without waiting for l.mu.
func (l *LB) publishAbsent() {
	if len(l.absent) == 0 {
		l.missing.Store(nil)
		return
	}
	var out Absence
	var reasons []string
	for _, name := range slices.Sorted(maps.Keys(l.absent)) {
		a := l.absent[name]
		reasons = append(reasons, "interface "+name+" "+a.reason)
		out.Final = out.Final || a.host
	}
	out.Reason = strings.Join(reasons, "; ")
	l.missing.Store(&out)
}

// Absent returns why traffic is not taken on an interface that is configured,
// nil when it is on all of them, and before traffic is taken at all. It never waits.
func (l *LB) Absent() *Absence { return l.missing.Load() }
