package route

import (
	"errors"
	"fmt"
	"time"
)

// probe makes the kernel resolve a next hop, or confirm it.
func (w *Watcher) probe(h *nextHop, now time.Time) {
	h.probeAt = now.Add(probeInterval)
	if n, known := w.neigh[h.neighbor]; known && n.fixed() {
		return // an administrator's: a request would make it dynamic
	}
	managed := w.nextHops.refresh != refreshByProbe
	if err := w.conn.probe(h.neighbor, managed); err != nil {
		w.stats.probeErrors.Add(1)
		h.refusedAt = now
		w.log.Debug("ask the kernel for a neighbor", "address", h.neighbor.addr, "interface", h.neighbor.index, "err", err)
		return
	}
	w.stats.probes.Add(1)
	w.adj[h.number].probes.Add(1)
	h.probed, h.failureExpired = true, false
	if w.nextHops.refresh == refreshUnknown {
		w.detectRefresh(h)
	}
	if a := &w.adj[h.number]; a.State() == Unresolved {
		a.dst.Store(uint64(Resolving) << 48)
	}
}

// failedHold is how long packets to a next hop that has not answered are refused at once.
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
