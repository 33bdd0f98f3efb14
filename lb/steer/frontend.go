package steer

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/lb/header"
)

// Frontend is an entry of the frontend map: a destination that is Weir's.
type Frontend struct {
	AddrPort netip.AddrPort
	Proto    uint8 // 6 TCP, 17 UDP, 132 SCTP
	// Flags but for FlowsOnly mean nothing to the program; they are kept for tools that list the
	// map, such as bpftool.
	Flags uint32
}

// FlowsOnly is the flag of a frontend of which existing connections alone are Weir's: SYNs to it
// are the kernel's.
const FlowsOnly = 1 << 31

// ErrManyRanges: an address and protocol has as many ranges of ports as there can be.
var ErrManyRanges = errors.New("too many ranges of ports")

// ErrFull: a map has no room for another entry.
var ErrFull = errors.New("map is full")

// AddFrontend makes packets to addr go to Weir. Adding an existing frontend only changes
// the flags.
func (p *Program) AddFrontend(addr netip.AddrPort, proto uint8, flags uint32) error {
	return p.AddDenyingFrontend(addr, proto, flags, 0)
}

// AddDenyingFrontend is AddFrontend of one with deny lists of its own, a bit for each.
func (p *Program) AddDenyingFrontend(addr netip.AddrPort, proto uint8, flags uint32, lists uint16) error {
	key, err := frontendKey(addr, proto)
	if err != nil {
		return err
	}
	err = p.maps.steer.Frontends.Put(key, steerFrontend{Flags: flags, Lists: uint32(lists)})
	if errors.Is(err, unix.E2BIG) {
		return fmt.Errorf("add frontend %s/%s: %w: %d frontends is the limit", addr, header.ProtocolName(proto), ErrFull, p.maps.config.MaxFrontends)
	}
	if err != nil {
		return fmt.Errorf("add frontend %s/%s: %w", addr, header.ProtocolName(proto), err)
	}
	p.maps.own.note(key)
	return nil
}

// RemoveFrontend gives packets to addr back to the kernel. Removing an unknown frontend is
// not an error.
func (p *Program) RemoveFrontend(addr netip.AddrPort, proto uint8) error {
	key, err := frontendKey(addr, proto)
	if err != nil {
		return err
	}
	err = p.maps.steer.Frontends.Delete(key)
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("remove frontend %s/%s: %w", addr, header.ProtocolName(proto), err)
	}
	return nil
}

// AddRange makes packets to the ports from that of addr to last go to Weir, as AddFrontend does
// for a single port. Adding an existing range only changes the flags.
func (p *Program) AddRange(addr netip.AddrPort, last uint16, proto uint8, flags uint32) error {
	k, err := makeRangeKey(addr, last, proto)
	if err != nil {
		return err
	}
	err = p.maps.changeRanges(k.steerFrontendKey, func(list *steerFrontendRanges) error {
		at := k.in(list)
		if at < 0 {
			at = slices.IndexFunc(list.Range[:], func(r steerFrontendRange) bool { return r.Last == 0 })
		}
		if at < 0 { // what only the last process has served ends sooner
			at = slices.IndexFunc(list.Range[:], func(r steerFrontendRange) bool {
				return p.maps.own.lacks(rangeKey{k.steerFrontendKey, r.First, r.Last})
			})
		}
		if at < 0 {
			return fmt.Errorf("%w: %d ranges of an address and protocol is the limit", ErrManyRanges, MaxRanges)
		}
		list.Range[at] = steerFrontendRange{First: k.first, Last: k.last, Flags: flags}
		return nil
	})
	if err == nil {
		p.maps.own.note(k)
		err = p.maps.steer.AnyRange.Put(uint32(0), uint32(1))
	}
	if err != nil {
		return fmt.Errorf("add frontend %s-%d/%s: %w", addr, last, header.ProtocolName(proto), err)
	}
	return nil
}

// RemoveRange gives packets to a range of ports back to the kernel. Removing an unknown range is
// not an error.
func (p *Program) RemoveRange(addr netip.AddrPort, last uint16, proto uint8) error {
	k, err := makeRangeKey(addr, last, proto)
	if err != nil {
		return err
	}
	err = p.maps.changeRanges(k.steerFrontendKey, func(list *steerFrontendRanges) error {
		if at := k.in(list); at >= 0 {
			list.Range[at] = steerFrontendRange{}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("remove frontend %s-%d/%s: %w", addr, last, header.ProtocolName(proto), err)
	}
	return nil
}

// Frontends lists the frontend map as it is in the kernel, in no order.
func (p *Program) Frontends() ([]Frontend, error) {
	var (
		list  []Frontend
		key   steerFrontendKey
		value steerFrontend
	)
	entries := p.maps.steer.Frontends.Iterate()
	for entries.Next(&key, &value) {
		list = append(list, Frontend{
			AddrPort: netip.AddrPortFrom(addrOf(key.Address, key.Family), ntohs(key.Port)),
			Proto:    key.Protocol, Flags: value.Flags,
		})
	}
	if err := entries.Err(); err != nil {
		return nil, fmt.Errorf("list frontends: %w", err)
	}
	return list, nil
}

// NoPorts is the empty range for SetSNAT.
var NoPorts = [2]uint16{1, 0}

// SetSNAT makes TCP, UDP and SCTP packets to the ports lo to hi (inclusive) of addr
// go to Weir: the answers to translated packets from that address, and ICMP errors about
// them. Where the programs read the flow table (see ByFlow), those of flows go to Weir at any other
// port too, and the range may be NoPorts. Setting an address again replaces its range.
func (p *Program) SetSNAT(addr netip.Addr, lo, hi uint16) error {
	if !addr.IsValid() || addr.Zone() != "" {
		return fmt.Errorf("set SNAT address %q: not an address", addr)
	}
	if (lo == 0 || lo > hi) && [2]uint16{lo, hi} != NoPorts {
		return fmt.Errorf("set SNAT address %s: ports %d-%d", addr, lo, hi)
	}
	err := p.maps.steer.Snat.Put(addressKey(addr), steerPortRange{Low: lo, High: hi})
	if errors.Is(err, unix.E2BIG) {
		return fmt.Errorf("set SNAT address %s: %w: %d addresses is the limit", addr, ErrFull, p.maps.config.MaxSNAT)
	}
	if err != nil {
		return fmt.Errorf("set SNAT address %s: %w", addr, err)
	}
	p.maps.own.note(snatKey{addressKey(addr)})
	return nil
}

// RemoveSNAT gives all packets to addr, frontends excepted, back to the kernel.
func (p *Program) RemoveSNAT(addr netip.Addr) error {
	if !addr.IsValid() {
		return fmt.Errorf("remove SNAT address %q: not an address", addr)
	}
	err := p.maps.steer.Snat.Delete(addressKey(addr))
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("remove SNAT address %s: %w", addr, err)
	}
	return nil
}

// AddVIP makes echo requests to addr go to Weir, and fragments that come before their
// first: an address that serves frontends and that the node does not hold, so that no other
// host answers. Adding an existing address is not an error.
func (p *Program) AddVIP(addr netip.Addr) error {
	if !addr.IsValid() || addr.Zone() != "" {
		return fmt.Errorf("add load balancer address %q: not an address", addr)
	}
	err := p.maps.steer.Vips.Put(addressKey(addr), uint32(0))
	if errors.Is(err, unix.E2BIG) {
		return fmt.Errorf("add load balancer address %s: %w: %d addresses is the limit", addr, ErrFull, p.maps.config.MaxFrontends)
	}
	if err != nil {
		return fmt.Errorf("add load balancer address %s: %w", addr, err)
	}
	p.maps.own.note(vipKey{addressKey(addr)})
	return nil
}

// RemoveVIP leaves echo requests to addr to the kernel. Removing an unknown address is not
// an error.
func (p *Program) RemoveVIP(addr netip.Addr) error {
	if !addr.IsValid() {
		return fmt.Errorf("remove load balancer address %q: not an address", addr)
	}
	err := p.maps.steer.Vips.Delete(addressKey(addr))
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("remove load balancer address %s: %w", addr, err)
	}
	return nil
}

func frontendKey(addr netip.AddrPort, proto uint8) (steerFrontendKey, error) {
	if !addr.IsValid() || addr.Port() == 0 || addr.Addr().Zone() != "" {
		return steerFrontendKey{}, fmt.Errorf("frontend %q: not an address and port", addr)
	}
	if proto != unix.IPPROTO_TCP && proto != unix.IPPROTO_UDP && proto != unix.IPPROTO_SCTP {
		return steerFrontendKey{}, fmt.Errorf("frontend %s: protocol %d is neither TCP, UDP nor SCTP", addr, proto)
	}
	words, family := addrWords(addr.Addr())
	return steerFrontendKey{Address: words, Port: ntohs(addr.Port()), Protocol: proto, Family: family}, nil
}

func addressKey(addr netip.Addr) steerAddressKey {
	words, family := addrWords(addr)
	return steerAddressKey{Address: words, Family: uint32(family)}
}

// addrWords returns the 16 bytes of the map keys, as words in memory order,
// IPv4 in the first; and the family, 4 or 6.
func addrWords(addr netip.Addr) (w [4]uint32, family uint8) {
	addr = addr.Unmap()
	if addr.Is4() {
		b := addr.As4()
		w[0] = binary.NativeEndian.Uint32(b[:])
		return w, 4
	}
	b := addr.As16()
	for i := range w {
		w[i] = binary.NativeEndian.Uint32(b[4*i:])
	}
	return w, 6
}

func addrOf(w [4]uint32, family uint8) netip.Addr {
	var b [16]byte
	for i, v := range w {
		binary.NativeEndian.PutUint32(b[4*i:], v)
	}
	if family == 4 {
		return netip.AddrFrom4([4]byte(b[:4]))
	}
	return netip.AddrFrom16(b)
}

// ntohs swaps between host and network byte order; it is its own inverse.
func ntohs(v uint16) uint16 {
	var b [2]byte
	binary.BigEndian.PutUint16(b[:], v)
	return binary.NativeEndian.Uint16(b[:])
}
