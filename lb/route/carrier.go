package route

import "time"

// readCarriers takes over the carriers of a reading.
func (x *nextHops) readCarriers(k *kernelState) {
	for index := range x.noCarrier {
		if !x.watched(index) {
			delete(x.noCarrier, index)
		}
	}
	now := time.Now()
	for index, l := range k.links {
		x.carrierChanged(index, carrier{lost: !l.running, has: l.running}, now)
	}
}

func (x *nextHops) carrierChanged(index int, c carrier, now time.Time) {
	if !x.watched(index) {
		return
	}
	if c.lost {
		x.noCarrier[index] = true
	}
	if c.has && x.noCarrier[index] {
		delete(x.noCarrier, index)
		x.linkReturned(index, now)
	}
}

// linkReturned forgets that the next hops on a link have not answered: nobody could. Endpoints and
// gateways in use are asked for at once. The kernel waits with that for its own next packet, or up
// to a second while it is asking. Clients, of which there may be any number, are asked for by the
// next packet.
func (x *nextHops) linkReturned(index int, now time.Time) {
	for _, h := range x.byKey {
		state := x.adj[h.number].State()
		switch {
		case h.permanent || h.neighbor.index != index || state == Valid:
		case !h.needed && state == Failed:
			h.failureExpired = true
			x.setFromNeighbor(h)
		case h.needed && now.Sub(h.usedAt) <= 2*probeInterval:
			x.probeAnew(h, now)
		}
	}
}

// probeAnew makes the kernel resolve a next hop from the beginning.
func (x *nextHops) probeAnew(h *nextHop, now time.Time) {
	h.begun = 0
	if x.resolving(h.neighbor) {
		if err := x.conn.restart(h.neighbor); err != nil {
			x.log.Debug("restart the resolution of a neighbor", "address", h.neighbor.addr, "err", err)
		}
	}
	x.probe(h, now)
}
