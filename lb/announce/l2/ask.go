package l2

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"
)

// Attempts to have a host answer.
const (
	askTimes  = 3
	askPause  = 200 * time.Millisecond
	askAtMost = 8 // hosts
)

// Ask asks hosts on the link of an interface by ARP or neighbor discovery for their link-layer addresses,
// as the host that has the address sender, and returns those that answer. It takes up to 0.6 s. Hosts
// note that sender is at this interface: it must be true. Of many hosts the first are asked.
func Ask(name string, sender netip.Addr, hosts []netip.Addr) (answered []netip.Addr, err error) {
	i, err := net.InterfaceByName(name)
	if err != nil {
		return nil, err
	}
	if len(i.HardwareAddr) != len(hardware{}) {
		return nil, fmt.Errorf("%s has no address of Ethernet", name)
	}
	s, err := openSocket(i.Index)
	if err != nil {
		return nil, err
	}
	defer s.close()
	mac, left := hardware(i.HardwareAddr), map[netip.Addr]bool{}
	for _, h := range hosts[:min(len(hosts), askAtMost)] {
		left[h] = true
	}
	for n := 0; n < askTimes && len(left) > 0; n++ {
		for h := range left {
			s.send(question(h, sender, mac))
		}
		if err := s.file.SetReadDeadline(time.Now().Add(askPause)); err != nil {
			return nil, err
		}
		b := make([]byte, 2048)
		for len(left) > 0 {
			n, err := s.file.Read(b)
			if errors.Is(err, os.ErrDeadlineExceeded) {
				break
			}
			if err != nil {
				return answered, err
			}
			if h, ok := parse(b[:n]); ok && !h.question && left[h.claimed] && addressee(b[:n]) == sender {
				delete(left, h.claimed)
				answered = append(answered, h.claimed)
			}
		}
	}
	return answered, nil
}

// question is the frame by which sender asks who has a.
func question(a, sender netip.Addr, mac hardware) []byte {
	if a.Is4() {
		return arp(arpRequest, hardware(broadcast), mac, sender, hardware{}, a)
	}
	group := solicitedNode(a)
	option := append([]byte{optionSource, 1}, mac[:]...)
	return neighborDiscovery(mac, sender, multicastMAC(group), group, neighborSolicitation, 0, a, option)
}

// addressee is whom an answer is for. Preconditions: f has been parsed.
func addressee(f []byte) netip.Addr {
	if p := f[etherLen:]; len(f) < etherLen+ip6Len+ndMessageLen || p[0]>>4 != 6 {
		return netip.AddrFrom4([4]byte(p[24:28]))
	}
	return netip.AddrFrom16([16]byte(f[etherLen+24 : etherLen+ip6Len]))
}
