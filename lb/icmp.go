package lb

// icmp deals with packet i, an ICMP or ICMPv6 message.
func (w *worker) icmp(b *batch, i int) { w.giveBack(b, i, DropNotTransport) }
