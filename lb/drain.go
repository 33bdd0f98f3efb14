package lb

// Drain ends the taking of new connections: from the next rounds of the workers on
// they are the kernel's, as they will be after Close. Established ones go on.
// There is no way back.
func (l *LB) Drain() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.refuseConnections()
	if err := l.steer.Hold(0); err != nil { // no process follows
		l.log.Warn("drain", "err", err)
	}
}

// refuseConnections tells workers, and every later view of the node, of the drain. The
// caller holds mu.
func (l *LB) refuseConnections() {
	l.draining = true
	node := *l.node.Load()
	node.Draining = true
	l.node.Store(&node)
}

// Connections counts those that a drain waits for: answered and not over. It looks
// at the whole flow table.
func (l *LB) Connections() int { return l.flows.Awaited() }
