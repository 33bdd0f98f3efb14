package worker

const (
	// leastFill is how many frames a port has for receiving while packets come
	// as they are dealt with: as many as most drivers' rings hold.
	leastFill = 1024
	// overloaded is how many packets in a row, with no end of them in sight, say
	// that more are coming than can be dealt with: then more frames only make
	// each of them colder.
	overloaded = 1 << 16
	// shrinkTicks is after what time without a long row a port has fewer frames.
	shrinkTicks = secondTicks
)

// fillLevel decides how many frames a port gives the kernel to receive into.
// The kernel goes through them in turn, so that each packet is written to the
// frame that was used longest ago: the fewer there are, the sooner it comes
// round, and the likelier it is still in a cache (20 % of the cost of a packet
// between 512 and 4,096, measured on veth). But a worker that is kept from
// running for a millisecond needs a thousand of them. So their number doubles
// when packets have piled up, and halves after a while when they no longer do.
type fillLevel struct {
	want int // 0: leastFill
	row  int // packets received in full batches, one after the other
	grew uint32
	now  uint32
}

// level is the number of frames for a ring of the given length.
func (f *fillLevel) level(ring int) int { return min(max(f.want, leastFill), ring) }

// received notes a batch of n packets.
func (f *fillLevel) received(n, ring int) {
	if n < batchSize {
		f.row = 0
		return
	}
	f.row += n
	switch level := f.level(ring); {
	case f.row > overloaded:
		f.want, f.row = leastFill, overloaded
	case f.row > level/2 && level < ring:
		f.want, f.grew = 2*level, f.now
	}
}

// shrinkFill lets the ports that had no long row for a while do with fewer
// frames. It is called once per tick.
func (w *Worker) shrinkFill() {
	for i := range w.ports {
		f := &w.ports[i].fill
		f.now = w.tick
		if f.want > leastFill && f.now-f.grew > shrinkTicks {
			f.want, f.grew = f.want/2, f.now
		}
	}
}
