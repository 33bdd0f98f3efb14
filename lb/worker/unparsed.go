package worker

import "github.com/weirlb/weir/lb/header"

// handleUnparsed is the verdict on packet p, which is not a whole TCP, UDP or SCTP packet. Packets
// that the kernel may handle are punted, malformed packets dropped.
func (w *fragmentHandler) handleUnparsed(p *pkt) verdict {
	p.Partial = false // stacks leave no other checksum to the device, and none of a fragment
	switch p.problem {
	case header.NotIP:
		return punt(DropNotIP)
	case header.IsFragment:
		return w.onFragment(p)
	case header.NotTransport:
		if p.Proto == header.ProtoICMP || p.Proto == header.ProtoICMPv6 {
			return w.icmp(p)
		}
		return punt(DropUnsupportedProtocol)
	}
	return drop(parseDrop(p.problem))
}

// parseDrop is the reason to drop a malformed packet.
func parseDrop(problem header.Problem) Drop {
	switch problem {
	case header.Truncated:
		return DropTruncated
	case header.BadIPHeader:
		return DropBadIPHeader
	case header.Martian:
		return DropMartian
	case header.BadExtension:
		return DropExtension
	case header.SourceRouted:
		return DropSourceRoute
	case header.BadFragment:
		return DropBadFragment
	case header.TinyFragment:
		return DropTinyFragment
	}
	return DropBadTransport
}
