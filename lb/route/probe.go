package route

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// probe makes the kernel resolve a next hop, or confirm it.
func (x *nextHops) probe(h *nextHop, now time.Time) {
	h.probeAt = now.Add(probeInterval)
	n, known := x.neigh[h.neighbor]
	if known && n.fixed() {
		return // an administrator's: a request would make it dynamic
	}
	managed := x.refresh != refreshByProbe
	joins := h.needed && !(known && n.usable()) && x.resolving(h.neighbor)
	if err := x.conn.probe(h.neighbor, managed); err != nil {
		x.counts.probeErrors.Add(1)
		h.refusedAt = now
		x.log.Debug("ask the kernel for a neighbor", "address", h.neighbor.addr, "interface", h.neighbor.index, "err", err)
		return
	}
	x.counts.probes.Add(1)
	a := &x.adj[h.number]
	if count := a.probes.Add(1); !joins {
		h.begun = count
	}
	h.probed, h.failureExpired = true, false
	if x.refresh == refreshUnknown {
		x.detectRefresh(h)
	}
	if s := a.State(); s == Unresolved || s == Failed && h.needed {
		if known && n.state&unix.NUD_FAILED != 0 {
			n.state = unix.NUD_INCOMPLETE // from now on, which the kernel does not announce
			x.neigh[h.neighbor] = n
		}
		x.setFromNeighbor(h)
	}
}

// resolving reports whether the kernel is asking for a neighbor, which it does not announce.
func (x *nextHops) resolving(k neighborKey) bool {
	n, ok := x.conn.neighbor(k)
	return ok && n.state&unix.NUD_INCOMPLETE != 0
}

// resolvesAgain reports whether the announcement of a failure is older than a probe: the kernel is
// asking again.
func (x *nextHops) resolvesAgain(k neighborKey) bool {
	for _, h := range x.byNeighbor[k] {
		if h.needed && x.adj[h.number].State() == Resolving {
			return x.resolving(k)
		}
	}
	return false
}

// failedHold is how long packets to a client that has not answered are refused at once.
const failedHold = time.Second

// detectRefresh finds out whether the kernel took NTF_EXT_MANAGED, by reading the neighbor
// back: an older kernel ignores the attribute.
func (x *nextHops) detectRefresh(h *nextHop) {
	x.refresh = refreshByProbe
	if n, ok := x.conn.neighbor(h.neighbor); ok && n.managed {
		x.refresh = refreshByKernel
	}
}

// maintain probes due next hops and releases unused ones. It runs every second.
func (x *nextHops) maintain(now time.Time) {
	for _, h := range x.byKey {
		if h.permanent {
			continue
		}
		if t := x.adj[h.number].used.Load(); t != h.lastTick {
			h.lastTick, h.usedAt = t, now
		}
		if x.adj[h.number].State() == Failed && now.Sub(h.failedAt) >= failedHold {
			// As in the kernel, the next packet has it asked for again, and waits.
			h.failureExpired = true
			x.setFromNeighbor(h)
		}
		if x.probeDue(h, now) {
			x.probe(h, now)
		}
	}
	if now.Sub(x.swept) >= x.idleAfter/20 {
		x.swept = now
		x.expireIdle(now)
	}
}

// probeDue reports whether the kernel is to be asked (again) for a next hop.
func (x *nextHops) probeDue(h *nextHop, now time.Time) bool {
	if now.Before(h.probeAt) || now.Sub(h.usedAt) > 2*probeInterval && h.probed {
		return false
	}
	return !h.probed || x.refresh == refreshByProbe
}

// releaseNeighbor takes back the request for h: a neighbor that the kernel had before is
// unmanaged again, any other is deleted.
func (x *nextHops) releaseNeighbor(h *nextHop) error {
	n, known := x.neigh[h.neighbor]
	if h.permanent || !h.probed || !known || n.fixed() || len(x.byNeighbor[h.neighbor]) > 1 {
		return nil
	}
	var err error
	if h.created || !n.usable() {
		err = x.conn.remove(h.neighbor)
	} else {
		err = x.conn.release(h.neighbor, n)
	}
	if err != nil {
		return fmt.Errorf("neighbor %s: %w", h.neighbor.addr, err)
	}
	return nil
}

// releaseAll takes back everything, after Run.
func (x *nextHops) releaseAll() error {
	var errs []error
	for _, h := range x.byKey {
		if err := x.releaseNeighbor(h); err != nil {
			errs = append(errs, err)
		}
		x.forgetNeighbor(h)
	}
	clear(x.byKey)
	return errors.Join(errs...)
}
