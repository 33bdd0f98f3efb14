package healthz

import (
	"fmt"
	"sync/atomic"
	"time"
)

// updateTimeout is the longest time that an update may be pending, as in
// kube-proxy: twice its full sync period of 30 s.
const updateTimeout = time.Minute

// Pending notices an update that is not published in time. The zero value has no update.
// Reason may be called concurrently with Begin and End.
type Pending struct {
	since atomic.Int64 // arrival of the update, in Unix nanoseconds; 0: none
}

// Begin notes the arrival of an update.
func (p *Pending) Begin(now time.Time) { p.since.Store(now.UnixNano()) }

// End notes the publication of the update.
func (p *Pending) End() { p.since.Store(0) }

// Reason is the reason for which Weir is unhealthy, "" if no update is overdue.
func (p *Pending) Reason(now time.Time) string {
	since := p.since.Load()
	if since == 0 {
		return ""
	}
	if age := now.Sub(time.Unix(0, since)); age > updateTimeout {
		return fmt.Sprintf("an update has been pending for %s", age.Round(time.Second))
	}
	return ""
}
