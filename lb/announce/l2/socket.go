package l2

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"
)

// socket sends and receives ARP and neighbor discovery on an interface. Frames that the steering
// program passes to the kernel arrive here, and those for addresses that the host does not hold.
type socket struct {
	file   *os.File
	groups map[netip.Addr]int // solicited-node groups with the number of addresses in them
	joined [][]netip.Addr     // by socket of memberships
	fds    []int
	index  int
}

// filter selects ARP, neighbor solicitations and neighbor advertisements without a VLAN, with the
// tag of a priority alone too (IEEE 802.1Q, VLAN 0): those with one are of the interface of the VLAN.
var filter = []unix.SockFilter{
	{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: ancillary + 48}, // SKF_AD_VLAN_TAG_PRESENT
	{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: 0, Jt: 2},
	{Code: unix.BPF_LD | unix.BPF_H | unix.BPF_ABS, K: ancillary + 44}, // SKF_AD_VLAN_TAG
	{Code: unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K, K: 0xfff, Jt: 9},
	{Code: unix.BPF_LD | unix.BPF_H | unix.BPF_ABS, K: 12},
	{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.ETH_P_ARP, Jt: 6},
	{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.ETH_P_IPV6, Jf: 6},
	{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: etherLen + 6},
	{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.IPPROTO_ICMPV6, Jf: 4},
	{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: etherLen + ip6Len},
	{Code: unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K, K: neighborSolicitation, Jf: 2},
	{Code: unix.BPF_JMP | unix.BPF_JGT | unix.BPF_K, K: neighborAdvertisement, Jt: 1},
	{Code: unix.BPF_RET | unix.BPF_K, K: 1 << 16},
	{Code: unix.BPF_RET | unix.BPF_K, K: 0},
}

const ancillary = 1<<32 - 0x1000 // SKF_AD_OFF

func openSocket(index int) (*socket, error) {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("packet socket: %w", err)
	}
	all := int(binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, unix.ETH_P_ALL)))
	err = errors.Join(
		unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1),
		unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}),
		unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: uint16(all), Ifindex: index}))
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("packet socket: %w", err)
	}
	return &socket{file: os.NewFile(uintptr(fd), "ARP and NDP"), groups: map[netip.Addr]int{}, index: index}, nil
}

// send sends frames. Those that the interface does not take at once are lost, as on the wire.
func (s *socket) send(frames ...[]byte) {
	c, err := s.file.SyscallConn()
	if err != nil {
		return
	}
	for _, f := range frames {
		_ = c.Write(func(fd uintptr) bool {
			_, _ = unix.Write(int(fd), f)
			return true
		})
	}
}

// receive calls f for each frame until the socket is closed.
func (s *socket) receive(f func([]byte)) {
	b := make([]byte, 2048)
	for {
		n, err := s.file.Read(b)
		switch {
		case err == nil:
			f(b[:n])
		case errors.Is(err, unix.ENETDOWN): // said once, the socket goes on
		default:
			return
		}
	}
}

func (s *socket) close() {
	_ = s.file.Close()
	for _, fd := range s.fds {
		_ = unix.Close(fd)
	}
}

// groupsPerSocket are memberships of a socket: the kernel bounds their memory.
const groupsPerSocket = 100

// join makes the host a member of the solicited-node group of an address, so that interface and
// switch pass solicitations for it.
func (s *socket) join(a netip.Addr) error {
	if a.Is4() {
		return nil
	}
	g := solicitedNode(a)
	if s.groups[g]++; s.groups[g] > 1 {
		return nil
	}
	at := -1
	for i := range s.joined {
		if len(s.joined[i]) < groupsPerSocket {
			at = i
		}
	}
	if at < 0 {
		fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		s.fds, s.joined, at = append(s.fds, fd), append(s.joined, nil), len(s.fds)
	}
	s.joined[at] = append(s.joined[at], g)
	return unix.SetsockoptIPv6Mreq(s.fds[at], unix.IPPROTO_IPV6, unix.IPV6_JOIN_GROUP, s.request(g))
}

// leave undoes join.
func (s *socket) leave(a netip.Addr) {
	if a.Is4() {
		return
	}
	g := solicitedNode(a)
	if s.groups[g]--; s.groups[g] > 0 {
		return
	}
	delete(s.groups, g)
	for i, list := range s.joined {
		for j := range list {
			if list[j] == g {
				s.joined[i] = append(list[:j], list[j+1:]...)
				_ = unix.SetsockoptIPv6Mreq(s.fds[i], unix.IPPROTO_IPV6, unix.IPV6_LEAVE_GROUP, s.request(g))
				return
			}
		}
	}
}

func (s *socket) request(g netip.Addr) *unix.IPv6Mreq {
	return &unix.IPv6Mreq{Multiaddr: g.As16(), Interface: uint32(s.index)}
}
