package route

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// probe makes the kernel resolve a next hop, or confirm it.
func (w *Watcher) probe(h *nextHop, now time.Time) {
	h.probeAt = now.Add(probeInterval)
	n, known := w.neigh[h.neighbor]
	if known && n.fixed() {
		return // an administrator's: a request would make it dynamic
	}
	managed := w.nextHops.refresh != refreshByProbe
	joins := h.needed && !(known && n.usable()) && w.resolving(h.neighbor)
	if err := w.conn.probe(h.neighbor, managed); err != nil {
		w.stats.probeErrors.Add(1)
		h.refusedAt = now
		w.log.Debug("ask the kernel for a neighbor", "address", h.neighbor.addr, "interface", h.neighbor.index, "err", err)
		return
	}
	w.stats.probes.Add(1)
	a := &w.adj[h.number]
	if count := a.probes.Add(1); !joins {
		h.begun = count
	}
	h.probed, h.failureExpired = true, false
	if w.nextHops.refresh == refreshUnknown {
		w.detectRefresh(h)
	}
	if s := a.State(); s == Unresolved || s == Failed && h.needed {
		if known && n.state&unix.NUD_FAILED != 0 {
			n.state = unix.NUD_INCOMPLETE // from now on, which the kernel does not announce
			w.neigh[h.neighbor] = n
		}
		w.setFromNeighbor(h)
	}
}

// resolving reports whether the kernel is asking for a neighbor, which it does not announce.
func (w *Watcher) resolving(k neighborKey) bool {
	n, ok := w.conn.neighbor(k)
	return ok && n.state&unix.NUD_INCOMPLETE != 0
}

// resolvesAgain reports whether the announcement of a failure is older than a probe: the kernel is
// asking again.
func (w *Watcher) resolvesAgain(k neighborKey) bool {
	for _, h := range w.nextHops.byNeighbor[k] {
		if h.needed && w.adj[h.number].State() == Resolving {
			return w.resolving(k)
		}
	}
	return false
}

// failedHold is how long packets to a client that has not answered are refused at once.
const failedHold = time.Second

// detectRefresh finds out whether the kernel took NTF_EXT_MANAGED, by reading the neighbor
// back: an older kernel ignores the attribute.
func (w *Watcher) detectRefresh(h *nextHop) {
	w.nextHops.refresh = refreshByProbe
	if n, ok := w.conn.neighbor(h.neighbor); ok && n.managed {
		w.nextHops.refresh = refreshByKernel
	}
}

// maintain probes due next hops and releases unused ones. It runs every second.
func (w *Watcher) maintain(now time.Time) {
	for _, h := range w.nextHops.byKey {
		if h.permanent {
			continue
		}
		if t := w.adj[h.number].used.Load(); t != h.lastTick {
			h.lastTick, h.usedAt = t, now
		}
		if w.adj[h.number].State() == Failed && now.Sub(h.failedAt) >= failedHold {
			// As in the kernel, the next packet has it asked for again, and waits.
			h.failureExpired = true
			w.setFromNeighbor(h)
		}
		if w.probeDue(h, now) {
			w.probe(h, now)
		}
	}
	if now.Sub(w.nextHops.swept) >= w.cfg.IdleAfter/20 {
		w.nextHops.swept = now
		w.expireIdle(now)
	}
}

// probeDue reports whether the kernel is to be asked (again) for a next hop.
func (w *Watcher) probeDue(h *nextHop, now time.Time) bool {
	if now.Before(h.probeAt) || now.Sub(h.usedAt) > 2*probeInterval && h.probed {
		return false
	}
	return !h.probed || w.nextHops.refresh == refreshByProbe
}

// releaseNeighbor takes back the request for h: a neighbor that the kernel had before is
// unmanaged again, any other is deleted.
func (w *Watcher) releaseNeighbor(h *nextHop) error {
	n, known := w.neigh[h.neighbor]
	if h.permanent || !h.probed || !known || n.fixed() || len(w.nextHops.byNeighbor[h.neighbor]) > 1 {
		return nil
	}
	var err error
	if h.created || !n.usable() {
		err = w.conn.remove(h.neighbor)
	} else {
		err = w.conn.release(h.neighbor, n)
	}
	if err != nil {
		return fmt.Errorf("neighbor %s: %w", h.neighbor.addr, err)
	}
	return nil
}

// releaseAll takes back everything, after Run.
func (w *Watcher) releaseAll() error {
	var errs []error
	for _, h := range w.nextHops.byKey {
		if err := w.releaseNeighbor(h); err != nil {
			errs = append(errs, err)
		}
		w.forgetNeighbor(h)
	}
	clear(w.nextHops.byKey)
	return errors.Join(errs...)
}
