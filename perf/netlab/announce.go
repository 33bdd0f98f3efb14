package netlab

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Responder answers ARP requests (RFC 826) and neighbor solicitations
// (RFC 4861) for addresses that no interface holds, as a load balancer's
// announcing speaker does on a node.
type Responder struct {
	socket  *os.File
	mac     net.HardwareAddr
	addrs   map[netip.Addr]bool
	answers atomic.Uint64
	done    chan struct{}
}

// NewResponder answers for addrs on an interface of n with that interface's MAC address,
// until it is closed.
func NewResponder(n *Namespace, ifname string, addrs ...netip.Addr) (*Responder, error) {
	l, err := n.link(ifname)
	if err != nil {
		return nil, err
	}
	r := &Responder{mac: l.Attrs().HardwareAddr, addrs: make(map[netip.Addr]bool), done: make(chan struct{})}
	for _, a := range addrs {
		r.addrs[a] = true
	}
	err = n.Do(func() error {
		fd, err := packetSocket(l.Attrs().Index)
		if err != nil {
			return err
		}
		// A responder may live as long as a lab: it must not see other traffic.
		err = errors.Join(
			unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1),
			unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
				&unix.SockFprog{Len: uint16(len(questions)), Filter: &questions[0]}))
		if err != nil {
			unix.Close(fd)
			return err
		}
		r.socket = os.NewFile(uintptr(fd), "announce "+ifname)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("answer ARP and NDP on %s/%s: %w", n.name, ifname, err)
	}
	go r.serve()
	return r, nil
}

// questions is a classic BPF program that selects ARP and neighbor solicitations.
var questions = []unix.SockFilter{
	{Code: unix.BPF_LD | unix.BPF_H | unix.BPF_ABS, K: 12},
	{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.ETH_P_ARP, Jt: 5},
	{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.ETH_P_IPV6, Jf: 5},
	{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: 14 + 6},
	{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.IPPROTO_ICMPV6, Jf: 3},
	{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: 14 + 40},
	{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: solicit, Jf: 1},
	{Code: unix.BPF_RET | unix.BPF_K, K: 1 << 16},
	{Code: unix.BPF_RET | unix.BPF_K, K: 0},
}

// solicit and advertise are the types of ICMPv6 messages (RFC 4861 section 4).
const solicit, advertise = 135, 136

// packetSocket receives every frame of the interface, multicast of groups
// that the host has not joined included.
func packetSocket(ifindex int) (int, error) {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	all := int(binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, unix.ETH_P_ALL)))
	err = errors.Join(
		unix.SetsockoptPacketMreq(fd, unix.SOL_PACKET, unix.PACKET_ADD_MEMBERSHIP,
			&unix.PacketMreq{Ifindex: int32(ifindex), Type: unix.PACKET_MR_ALLMULTI}),
		unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: uint16(all), Ifindex: ifindex}))
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// Answers is the number of answers sent.
func (r *Responder) Answers() uint64 { return r.answers.Load() }

// Close stops answering.
func (r *Responder) Close() error {
	err := r.socket.Close()
	<-r.done
	return err
}

func (r *Responder) serve() {
	defer close(r.done)
	buf := make([]byte, 2048)
	for {
		size, err := r.socket.Read(buf)
		if errors.Is(err, unix.ENETDOWN) {
			continue // said once; the socket receives again when the interface is up
		}
		if err != nil {
			return // closed
		}
		if answer := r.answer(buf[:size]); answer != nil {
			if _, err := r.socket.Write(answer); err == nil {
				r.answers.Add(1)
			}
		}
	}
}

// answer returns the frame to send for a received frame, or nil.
func (r *Responder) answer(frame []byte) []byte {
	if len(frame) < 14 {
		return nil
	}
	switch binary.BigEndian.Uint16(frame[12:]) {
	case unix.ETH_P_ARP:
		return r.answerARP(frame)
	case unix.ETH_P_IPV6:
		return r.answerNDP(frame)
	}
	return nil
}

func (r *Responder) answerARP(f []byte) []byte {
	const request = 1
	if len(f) < 42 || binary.BigEndian.Uint16(f[20:]) != request {
		return nil
	}
	target := netip.AddrFrom4([4]byte(f[38:42]))
	if !r.addrs[target] {
		return nil
	}
	out := make([]byte, 42)
	copy(out, f[6:12])
	copy(out[6:], r.mac)
	copy(out[12:20], f[12:20]) // EtherType, hardware and protocol type, lengths
	out[21] = 2                // reply
	copy(out[22:], r.mac)
	copy(out[28:], f[38:42])
	copy(out[32:], f[22:32]) // sender's MAC and address become the target's
	return out
}

func (r *Responder) answerNDP(f []byte) []byte {
	const (
		ip, icmp             = 14, 14 + 40
		solicited, override  = 0x40, 0x20
		optTargetLinkAddress = 2
		length               = 24 + 8
	)
	if len(f) < icmp+24 || f[ip+6] != unix.IPPROTO_ICMPV6 || f[icmp] != solicit {
		return nil
	}
	target, source := netip.AddrFrom16([16]byte(f[icmp+8:icmp+24])), netip.AddrFrom16([16]byte(f[ip+8:ip+24]))
	if !r.addrs[target] || source.IsUnspecified() {
		return nil // an unspecified source is duplicate address detection
	}
	out := make([]byte, icmp+length)
	copy(out, f[6:12])
	copy(out[6:], r.mac)
	binary.BigEndian.PutUint16(out[12:], unix.ETH_P_IPV6)
	out[ip] = 6 << 4
	binary.BigEndian.PutUint16(out[ip+4:], length)
	out[ip+6], out[ip+7] = unix.IPPROTO_ICMPV6, 255
	copy(out[ip+8:], f[icmp+8:icmp+24])
	copy(out[ip+24:], f[ip+8:ip+24])
	out[icmp], out[icmp+4] = advertise, solicited|override
	copy(out[icmp+8:], f[icmp+8:icmp+24])
	out[icmp+24], out[icmp+25] = optTargetLinkAddress, 1
	copy(out[icmp+26:], r.mac)
	binary.BigEndian.PutUint16(out[icmp+2:], icmp6Checksum(out[ip+8:ip+40], out[icmp:]))
	return out
}

// icmp6Checksum sums the pseudo-header (RFC 8200 section 8.1) and message.
func icmp6Checksum(addrs, message []byte) uint16 {
	sum := uint32(len(message)) + unix.IPPROTO_ICMPV6
	for _, b := range [][]byte{addrs, message} {
		for i := 0; i+1 < len(b); i += 2 {
			sum += uint32(binary.BigEndian.Uint16(b[i:]))
		}
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}
