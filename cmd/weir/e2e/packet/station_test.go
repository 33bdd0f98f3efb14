package packet

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/weirlb/weir/perf/netlab"
)

// station is one place from which frames are sent and where they arrive.
type station struct {
	name string
	tap  *netlab.Tap
	// sending sends a frame in place of the tap, unless it is nil.
	sending func(t testing.TB, at *station, frame []byte)
}

func openStation(n *netlab.Namespace, name string) (*station, error) {
	tap, err := netlab.NewTap(n, "eth0")
	return &station{name: name, tap: tap}, err
}

// next is the next frame that is not the kernel's own chatter, nil when none
// comes in time.
func (s *station) next(t testing.TB, within time.Duration) []byte {
	t.Helper()
	for {
		frame, partial, err := s.tap.Receive(within)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return nil
		}
		if err != nil {
			t.Fatalf("receive at %s: %v", s.name, err)
		}
		if !chatter(frame) && !bytes.HasSuffix(frame, []byte(mark)) {
			if partial {
				completeChecksum(frame)
			}
			return frame
		}
	}
}

// asked waits for an ARP request or a neighbor solicitation for an address,
// and says whether one came.
func (s *station) asked(t testing.TB, a netip.Addr) bool {
	t.Helper()
	for {
		frame, _, err := s.tap.Receive(within)
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			return false
		case err != nil:
			t.Fatalf("receive at %s: %v", s.name, err)
		case len(frame) >= 42 && binary.BigEndian.Uint16(frame[12:]) == 0x0806 && netip.AddrFrom4([4]byte(frame[38:42])) == a,
			len(frame) >= 78 && frame[20] == protoICMPv6 && frame[54] == 135 && netip.AddrFrom16([16]byte(frame[62:78])) == a:
			return true
		}
	}
}

// chatter says whether a frame is multicast, ARP or neighbor discovery.
func chatter(frame []byte) bool {
	if len(frame) < 14 || frame[0]&1 != 0 {
		return true
	}
	switch binary.BigEndian.Uint16(frame[12:]) {
	case 0x0806:
		return true
	case 0x86dd:
		return len(frame) >= 55 && frame[20] == protoICMPv6 && frame[54] >= 133 && frame[54] <= 137
	}
	return false
}

// completeChecksum does what a device would with a checksum left to it: the
// field holds the pseudo header's sum.
func completeChecksum(frame []byte) {
	l3 := ipOffset(frame)
	l4, proto := l3+40, frame[l3+6]
	if frame[l3]>>4 == 4 {
		l4, proto = l3+int(frame[l3]&15)*4, frame[l3+9]
	}
	at := 6
	if proto == protoTCP {
		at = 16
	}
	body := frame[l4 : l3+ipLength(frame[l3:])]
	sum := ^sum16(body)
	if sum == 0 && proto == protoUDP {
		sum = 0xffff
	}
	binary.BigEndian.PutUint16(body[at:], sum)
}

// sentinel is a flow of its own whose packets are sent behind those of a case:
// once they have arrived, whatever Weir makes of the case has.
type sentinel struct {
	l       *lab
	service *service
	at      *station
	count   int
}

var sentinelClient = netip.AddrPortFrom(netip.MustParseAddr("203.0.113.250"), 1)

func init() {
	definitions["sentinel"] = definition{endpoints: []endpoint{fabric(39)}}
	definitions["sentinel-pod"] = definition{endpoints: []endpoint{pod}}
}

// frontend is that of the sentinel's flow.
func (n *sentinel) frontend() netip.AddrPort {
	return netip.AddrPortFrom(n.service.vip(false), udpPort)
}

// pass sends a packet there and back and returns what else arrived meanwhile.
func (n *sentinel) pass(t testing.TB) (unexpected []string) {
	t.Helper()
	n.count++
	word := fmt.Appendf(nil, "sentinel %s %d", n.at.name, n.count)
	send(t, n.l.client, packet{srcMAC: clientMAC, dstMAC: edge0MAC, src: sentinelClient,
		dst: n.frontend(), ttl: 64, payload: word}.bytes(t))
	there, found := n.until(t, n.at, word)
	if found == nil {
		return append(there, "the sentinel did not arrive at "+n.at.name)
	}
	e := n.service.hosts()[0]
	from, to := mac(e.network, e.host), edge1MAC
	if e.isPod() {
		to = edgePodMAC
	}
	port, _ := ports(found)
	send(t, n.at, packet{srcMAC: from, dstMAC: to, src: netip.AddrPortFrom(e.addr(false), udpTarget),
		dst: netip.AddrPortFrom(netip.AddrFrom4([4]byte(found[26:30])), port), ttl: 64, payload: word}.bytes(t))
	back, found := n.until(t, n.l.client, word)
	if found == nil {
		back = append(back, "the sentinel's answer did not arrive")
	}
	return append(there, back...)
}

func (n *sentinel) until(t testing.TB, s *station, word []byte) (unexpected []string, found []byte) {
	t.Helper()
	for {
		frame := s.next(t, within)
		switch {
		case frame == nil:
			return unexpected, nil
		case bytes.HasSuffix(frame, word):
			return unexpected, frame
		}
		unexpected = append(unexpected, fmt.Sprintf("not expected at %s: %x\n%s", s.name, frame, summary(frame)))
	}
}

func send(t testing.TB, s *station, frame []byte) {
	t.Helper()
	if s.sending != nil {
		s.sending(t, s, frame)
		return
	}
	if err := s.tap.Send(frame); err != nil {
		t.Fatalf("send from %s: %v", s.name, err)
	}
}
