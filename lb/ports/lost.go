package ports

import (
	"github.com/vishvananda/netlink"

	"github.com/weirlb/weir/lb/uppair"
)

// Lost counts the packets that the kernel has lost behind a program of Weir's, which takes them
// for forwarded.
type Lost struct {
	// Pair are those that arrived on the interface, in the veth pair to the packet loop. Of hook
	// tcx alone.
	Pair uint64
	// Transmit are those that were to leave by the interface, of any sender: the kernel's
	// count of the device.
	Transmit uint64
}

// losses are the packets lost since the first look: a device and a pair are older than the
// process.
type losses struct {
	begun       bool
	before, now Lost
}

// look takes over the counts of a device and of its pair, nil without one. found is the interface
// in routes. A count that cannot be read stays.
func (l *losses) look(index int, pair *uppair.Pair, found netlink.Link) {
	now := l.now
	if found.Attrs().Index != index { // the bond's
		found, _ = netlink.LinkByIndex(index)
	}
	if found != nil && found.Attrs().Statistics != nil {
		now.Transmit = found.Attrs().Statistics.TxDropped
	}
	if pair != nil {
		if n, err := pair.Dropped(); err == nil {
			now.Pair = n
		}
	}
	l.note(now)
}

func (l *losses) note(now Lost) {
	if !l.begun {
		l.before, l.begun = now, true
	}
	l.now = now
}

// since is the number lost since the first look. A count that has become less began anew.
func (l *losses) since() Lost {
	return Lost{Pair: grown(l.before.Pair, l.now.Pair), Transmit: grown(l.before.Transmit, l.now.Transmit)}
}

func grown(before, now uint64) uint64 {
	if now < before {
		return now
	}
	return now - before
}
