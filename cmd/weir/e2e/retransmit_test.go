package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// losses are the segments that client and endpoint have sent again because they were lost, by the
// established connections' sockets, and the segments that reset a connection.
type losses struct {
	segments map[string]int64 // by socket
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
			// A segment that the receiver had before was not lost: only the machine was slow.
			n.segments[name] = int64(s.TCPInfo.Total_retrans) - int64(s.TCPInfo.Dsack_dups)
		}
	}
	return nil
}

// since returns the losses after the first ones, of connections that were established at both times.
func (n losses) since(first losses) (segments, resets int64, sockets string) {
	var list []string
	for name, count := range n.segments {
		before, ok := first.segments[name]
		if ok && count > before {
			segments += count - before
			list = append(list, fmt.Sprintf("%d by %s", count-before, name))
		}
	}
	return segments, n.resets - first.resets, strings.Join(list, ", ")
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
	t.Errorf("%s: %d segments were sent again, %d reset a connection: %s", when, segments, resets, sockets)
}
