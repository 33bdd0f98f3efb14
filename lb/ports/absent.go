package ports

import (
	"fmt"
	"slices"
	"time"

	"github.com/weirlb/weir/lb/device"
	"github.com/weirlb/weir/lb/ports/absence"
)

// noteAbsent follows which configured interfaces have no port.
func (ps *Ports) noteAbsent(v *view) {
	for _, in := range v.interfaces {
		d := ps.list.attachedBy(in.Name)
		switch fault := ps.list.faultOf(in.Name); {
		case d == nil || ps.list.linkDown(in.Name):
			ps.absent.Set(in.Name, ps.whyAbsent(in.Name, v), false)
		case fault != "":
			ps.absent.Set(in.Name, fault, false)
		default:
			ps.setPresent(in.Name, d)
		}
	}
	if id := ps.list.hostID(); id >= 0 {
		if host := ps.list.ports[id]; host.fault != "" {
			ps.absent.Set(host.name, host.fault, false)
		} else {
			ps.setPresent(host.name, host)
		}
	}
}

// setPresent notes that an interface takes traffic, by a port of device d.
func (ps *Ports) setPresent(name string, d *port) {
	if after, was := ps.absent.Clear(name); was {
		ps.log.Info("interface is attached again", "interface", name, "mode", d.granted(),
			"queues", d.queues, "after", after.Round(time.Millisecond))
	}
}

// whyAbsent is why an interface has no port.
func (ps *Ports) whyAbsent(name string, v *view) string {
	i := slices.IndexFunc(v.links, func(d device.Link) bool { return d.Name == name })
	if i < 0 {
		return "is gone: it is attached again when it is back"
	}
	if ps.list.linkDown(name) {
		return absence.NoCarrier
	}
	for _, r := range v.ports[name] {
		if refused, ok := ps.life.refused[r.Device]; ok {
			return "is gone and back, but cannot be attached: " + refused.err
		}
		if d := link(v.links, r.Device); !d.Enabled {
			return fmt.Sprintf("is gone and back, but %s is down: bring it up", d.Name)
		}
	}
	if err := v.errs[name]; err != nil {
		return "is gone and back, but cannot be attached: " + err.Error()
	}
	return absence.Attaching
}

// Absent returns why the node should get no traffic: a configured interface has no port, or none
// has a carrier. It is nil otherwise, and before Attach. It may be called at any time.
func (ps *Ports) Absent() *absence.Absence { return ps.absent.Load() }

// Absences are the reasons by configured interface.
func (ps *Ports) Absences() map[string]string { return ps.absent.Reasons() }
