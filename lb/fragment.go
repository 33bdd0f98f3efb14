package lb

// fragment deals with packet i, a fragment of an IP datagram.
func (w *worker) fragment(b *batch, i int) { w.giveBack(b, i, DropFragment) }
