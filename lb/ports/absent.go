package ports

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/weirlb/weir/lb/device"
	"github.com/weirlb/weir/lb/warning"
)

// absence is a configured interface that was attached at the start and has no port now.
type absence struct {
	since  time.Time
	reason string
	host   bool // the host veth, which only a new process makes again
}

// Absence is why traffic is not taken on some interface.
type Absence struct {
	Reason string
	// Final is true when only a restart of Weir helps.
	Final bool
}

// Absent returns why the node should get no traffic: a configured interface has no port, or none
// has a carrier. It is nil otherwise, and before Attach. It may be called at any time.
func (ps *Ports) Absent() *Absence { return ps.published.Load() }

// Absences are the reasons by configured interface.
func (ps *Ports) Absences() map[string]string {
	reasons := map[string]string{}
	for name, a := range ps.absent {
		reasons[name] = a.reason
	}
	return reasons
}

// noteAbsent follows which configured interfaces have no port.
func (ps *Ports) noteAbsent(v *view) {
	for _, in := range ps.cfg.Interfaces {
		d := ps.attachedBy(in.Name)
		switch fault := faultOf(ps.list, in.Name); {
		case d == nil || linkDown(ps, in.Name):
			ps.setAbsent(in.Name, ps.whyAbsent(in.Name, v), false)
		case fault != "":
			ps.setAbsent(in.Name, fault, false)
		default:
			ps.setPresent(in.Name, d)
		}
	}
	if id := ps.HostID(); id >= 0 {
		switch host := ps.list[id]; {
		case host.fault != "":
			ps.setAbsent(host.name, host.fault, false)
		case !ps.absent[host.name].host:
			ps.setPresent(host.name, host)
		}
	}
}

// setPresent notes that an interface takes traffic, by a port of device d.
func (ps *Ports) setPresent(name string, d *port) {
	a, was := ps.absent[name]
	if !was {
		return
	}
	delete(ps.absent, name)
	ps.warnings.Retract(warning.InterfaceGone, name)
	ps.publishAbsent()
	ps.log.Info("interface is attached again", "interface", name, "mode", d.granted(),
		"queues", d.queues, "after", time.Since(a.since).Round(time.Millisecond))
}

// attachedBy is the device of a port of a configured interface, nil when none is
// attached.
func (ps *Ports) attachedBy(name string) *port {
	for _, p := range ps.list {
		if p.parent != name || p.routeIndex == 0 || p.state != open {
			continue
		}
		if d := ps.deviceOf(p); d.attachment != nil && !severed(d) {
			return d
		}
	}
	return nil
}

// linkDown reports whether a configured interface is there and has no carrier.
func linkDown(ps *Ports, name string) bool {
	return slices.ContainsFunc(ps.list, func(p *port) bool {
		return p.parent == name && p.routeIndex != 0 && p.state == open && p.down && !severed(ps.deviceOf(p))
	})
}

// noCarrier is the reason of an interface that stays attached meanwhile.
const noCarrier = "is down or has no carrier: its packets are lost until it is up"

// attaching is the reason that holds for a moment when all is well.
const attaching = "is gone and back, and about to be attached"

// whyAbsent is why an interface has no port.
func (ps *Ports) whyAbsent(name string, v *view) string {
	i := slices.IndexFunc(v.links, func(d device.Link) bool { return d.Name == name })
	if i < 0 {
		return "is gone: it is attached again when it is back"
	}
	if linkDown(ps, name) {
		return noCarrier
	}
	for _, r := range v.ports[name] {
		if refused, ok := ps.refused[r.Device]; ok {
			return "is gone and back, but cannot be attached: " + refused.err
		}
		if d := link(v.links, r.Device); !d.Enabled {
			return fmt.Sprintf("is gone and back, but %s is down: bring it up", d.Name)
		}
	}
	if err := v.errs[name]; err != nil {
		return "is gone and back, but cannot be attached: " + err.Error()
	}
	return attaching
}

func (ps *Ports) setAbsent(name, reason string, host bool) {
	a, was := ps.absent[name]
	if was && a.reason == reason {
		return
	}
	if !was {
		a.since = time.Now()
	}
	a.reason, a.host = reason, host
	ps.absent[name] = a
	ps.publishAbsent()
	if !was || reason != attaching {
		ps.warnings.Replace(warning.InterfaceGone, name, reason)
	}
}

// publishAbsent stores the answer of Absent. An interface without a carrier does not count as long as
// another works: uplinks are redundant, and a switch that restarts must not take all
// nodes out of service at once.
func (ps *Ports) publishAbsent() {
	works := slices.ContainsFunc(ps.cfg.Interfaces, func(in Interface) bool {
		_, absent := ps.absent[in.Name]
		return !absent
	})
	var out Absence
	var reasons []string
	for _, name := range slices.Sorted(maps.Keys(ps.absent)) {
		a := ps.absent[name]
		if works && a.reason == noCarrier {
			continue
		}
		reasons = append(reasons, "interface "+name+" "+a.reason)
		out.Final = out.Final || a.host
	}
	if reasons == nil {
		ps.published.Store(nil)
		return
	}
	out.Reason = strings.Join(reasons, "; ")
	ps.published.Store(&out)
}
