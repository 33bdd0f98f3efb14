// Package absence notes by which interfaces no traffic is taken, and decides whether the node
// should get any.
package absence

import (
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/weirlb/weir/lb/warning"
)

// NoCarrier is the reason of an interface that stays attached meanwhile.
const NoCarrier = "is down or has no carrier: its packets are lost until it is up"

// Attaching is the reason that holds for a moment when all is well.
const Attaching = "is gone and back, and about to be attached"

// Absence is why traffic is not taken on some interface.
type Absence struct {
	Reason string
	// Final is true when only a restart of Weir helps.
	Final bool
}

// Record has the interfaces by which no traffic is taken. Calls must not overlap, but for Load.
type Record struct {
	interfaces []string // configured
	warnings   *warning.List
	absent     map[string]absence // by name
	published  atomic.Pointer[Absence]
}

// absence is an interface that was attached at the start and has no port now.
type absence struct {
	since  time.Time
	reason string
	final  bool
}

// New returns a record of the configured interfaces, of which none is absent.
func New(interfaces []string, warnings *warning.List) *Record {
	return &Record{interfaces: interfaces, warnings: warnings, absent: map[string]absence{}}
}

// Load returns why the node should get no traffic, nil if it should. It may be called at any time.
func (r *Record) Load() *Absence { return r.published.Load() }

// Reasons are the reasons by interface.
func (r *Record) Reasons() map[string]string {
	reasons := map[string]string{}
	for name, a := range r.absent {
		reasons[name] = a.reason
	}
	return reasons
}

// Any reports whether any interface is absent.
func (r *Record) Any() bool { return len(r.absent) > 0 }

// Set notes why no traffic is taken by an interface. Of a final reason Clear takes nothing back.
func (r *Record) Set(name, reason string, final bool) {
	a, was := r.absent[name]
	if was && a.reason == reason {
		return
	}
	if !was {
		a.since = time.Now()
	}
	a.reason, a.final = reason, final
	r.absent[name] = a
	r.publish()
	if !was || reason != Attaching {
		r.warnings.Replace(warning.InterfaceGone, name, reason)
	}
}

// Clear notes that an interface takes traffic. It returns for how long it took none, and whether
// it took none.
func (r *Record) Clear(name string) (after time.Duration, was bool) {
	a, was := r.absent[name]
	if !was || a.final {
		return 0, false
	}
	delete(r.absent, name)
	r.warnings.Retract(warning.InterfaceGone, name)
	r.publish()
	return time.Since(a.since), true
}

// publish stores the answer of Load. An interface without a carrier does not count as long as
// another works: uplinks are redundant, and a switch that restarts must not take all nodes out of
// service at once.
func (r *Record) publish() {
	works := slices.ContainsFunc(r.interfaces, func(name string) bool {
		_, absent := r.absent[name]
		return !absent
	})
	var out Absence
	var reasons []string
	for _, name := range slices.Sorted(maps.Keys(r.absent)) {
		a := r.absent[name]
		if works && a.reason == NoCarrier {
			continue
		}
		reasons = append(reasons, "interface "+name+" "+a.reason)
		out.Final = out.Final || a.final
	}
	if reasons == nil {
		r.published.Store(nil)
		return
	}
	out.Reason = strings.Join(reasons, "; ")
	r.published.Store(&out)
}
