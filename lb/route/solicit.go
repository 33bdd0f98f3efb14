package route

import (
	"errors"
	"fmt"
	"time"
)

// ask makes the kernel resolve a next hop, or confirm it.
func (w *Watcher) ask(h *nextHop, now time.Time) {
	h.askAt = now.Add(askAgain)
	if n, known := w.neigh[h.neighbor]; known && n.fixed() {
		return // an administrator's: a request would make it an ordinary one
	}
	managed := w.nextHops.kept != keepByAsking
	if err := w.conn.solicit(h.neighbor, managed); err != nil {
		w.stats.solicitErrors.Add(1)
		h.refusedAt = now
		w.log.Debug("ask the kernel for a neighbor", "address", h.neighbor.addr, "interface", h.neighbor.index, "error", err)
		return
	}
	w.stats.solicited.Add(1)
	h.asked, h.lapsed = true, false
	if w.nextHops.kept == keepUnknown {
		w.probeKeeping(h)
	}
	if a := &w.adj[h.number]; a.State() == Unresolved {
		a.dst.Store(uint64(Resolving) << 48)
	}
}

// failsFor is how long packets to a next hop that has not answered are refused at once.
const failsFor = time.Second

// probeKeeping finds out whether the kernel took NTF_EXT_MANAGED, by reading
// back what was asked: one without it ignores the attribute.
func (w *Watcher) probeKeeping(h *nextHop) {
	w.nextHops.kept = keepByAsking
	if n, ok := w.conn.neighbor(h.neighbor); ok && n.managed {
		w.nextHops.kept = keepByKernel
	}
}

// maintain asks for what is due and gives up what nobody uses. Every second.
func (w *Watcher) maintain(now time.Time) {
	for _, h := range w.nextHops.byKey {
		if h.permanent {
			continue
		}
		if t := w.adj[h.number].used.Load(); t != h.lastTick {
			h.lastTick, h.usedAt = t, now
		}
		if w.adj[h.number].State() == Failed && now.Sub(h.failedAt) >= failsFor {
			// As in the kernel, the next packet has it asked for again, and waits.
			h.lapsed = true
			w.setFromNeighbor(h)
		}
		if w.due(h, now) {
			w.ask(h, now)
		}
	}
	if now.Sub(w.nextHops.swept) >= w.cfg.IdleAfter/20 {
		w.nextHops.swept = now
		w.giveUpIdle(now)
	}
}

// due says whether the kernel is to be asked (again) for a next hop.
func (w *Watcher) due(h *nextHop, now time.Time) bool {
	if now.Before(h.askAt) || now.Sub(h.usedAt) > 2*askAgain && h.asked {
		return false
	}
	return !h.asked || w.nextHops.kept == keepByAsking
}

// restore takes back what the kernel was asked for h: a neighbor that it knew
// before goes back to its own keeping, another goes.
func (w *Watcher) restore(h *nextHop) error {
	n, known := w.neigh[h.neighbor]
	if h.permanent || !h.asked || !known || n.fixed() || len(w.nextHops.byNeighbor[h.neighbor]) > 1 {
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
		if err := w.restore(h); err != nil {
			errs = append(errs, err)
		}
		w.forgetNeighbor(h)
	}
	clear(w.nextHops.byKey)
	return errors.Join(errs...)
}
