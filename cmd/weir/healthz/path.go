package healthz

import (
	"fmt"
	"time"

	"github.com/weirlb/weir/lb/ports/absence"
)

// PacketPath has the state of the packet path, as lb.LB does. Methods do not wait.
type PacketPath interface {
	StuckWorker() int
	Absent() *absence.Absence
}

// PathFault is why packets are not forwarded on some interface or by some worker, "" if they
// are. That alone withdraws addresses for want of health.
func PathFault(path PacketPath) string {
	if absent := path.Absent(); absent != nil {
		return absent.Reason
	}
	if stuck := path.StuckWorker(); stuck >= 0 {
		return fmt.Sprintf("worker %d is stuck", stuck)
	}
	return ""
}

// Of is the health of the packet path and of publications.
func Of(path PacketPath, p *Pending, now time.Time) Health {
	h := Health{Healthy: true, LastUpdated: p.Last(), Pending: p.Age(now)}
	if reason := p.Stuck(now); reason != "" {
		h.Healthy, h.Reason = false, reason
	}
	if stuck := path.StuckWorker(); stuck >= 0 {
		h.Healthy, h.Reason = false, fmt.Sprintf("worker %d is stuck", stuck)
	}
	if absent := path.Absent(); absent != nil {
		h.Absent = absent.Reason
		if absent.Final {
			h.Healthy, h.Reason = false, absent.Reason
		}
	}
	return h
}
