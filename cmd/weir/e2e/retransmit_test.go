package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// losses are the segments that client and endpoint have sent again, by the established connections'
// sockets, the segments that they had before, and those that reset a connection.
type losses struct {
	segments map[string]int64 // by socket
	had      int64
	resets   int64
}

// lost returns the losses until now.
func (f *fixture) lost(t *testing.T) losses {
	t.Helper()
	n := losses{segments: map[string]int64{}}
	for _, at := range f.Namespaces() {
		if at != f.Client && at != f.ZoneA {
			continue
		}
		c, err := at.Counters()
		must(t, err)
		// The sockets count what they are told of this (Dsack_dups), but not by an ACK that is late itself.
		n.had += int64(c["TcpExtTCPDSACKOldSent"] + c["TcpExtTCPDSACKOfoSent"])
		n.resets += int64(c["TcpEstabResets"]) // a RST may also answer a segment that is late
		must(t, at.Inside(n.readSockets))
	}
	return n
}

func (n *losses) readSockets() error {
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		sockets, err := netlink.SocketDiagTCPInfo(family)
		if err != nil {
			return err
		}
		for _, s := range sockets {
			if s.TCPInfo == nil || s.InetDiagMsg.State != unix.BPF_TCP_ESTABLISHED {
				continue
			}
			id := s.InetDiagMsg.ID
			name := fmt.Sprintf("%v:%d-%v:%d (%d)", id.Source, id.SourcePort, id.Destination, id.DestinationPort, id.Cookie)
			n.segments[name] = int64(s.TCPInfo.Total_retrans)
		}
	}
	return nil
}

// since returns the segments lost after the first losses, of connections that were established at
// both times. One that the receiver had before was not lost: only the machine was slow.
func (n losses) since(first losses) (segments, resets int64, sockets string) {
	var list []string
	for name, count := range n.segments {
		before, ok := first.segments[name]
		if ok && count > before {
			segments += count - before
			list = append(list, fmt.Sprintf("%d by %s", count-before, name))
		}
	}
	return max(0, segments-(n.had-first.had)), n.resets - first.resets, strings.Join(list, ", ")
}

// losesNothing checks that nothing was lost since. Whether the receiver had a segment that was
// sent again is known a little later.
func (l *talks) losesNothing(t *testing.T, first losses, when string) {
	t.Helper()
	for range 20 {
		if segments, resets, _ := l.lost(t).since(first); segments == 0 && resets == 0 {
			return
		}
		pauseFor(t.Context(), 50*time.Millisecond)
	}
	segments, resets, sockets := l.lost(t).since(first)
	t.Errorf("%s: %d segments were lost, %d reset a connection; sent again: %s", when, segments, resets, sockets)
}
