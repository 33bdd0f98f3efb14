package steer

import (
	"errors"
	"fmt"
	"runtime"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// denyBlock is the size of a block of a set of deny lists in bytes, and innerMap the flag of maps
// in a map that may differ in size (BPF_F_INNER_MAP, Linux 5.10).
const (
	denyBlock = 64
	innerMap  = 0x1000
)

// DenyMemory is memory for a set of deny lists (lb/denylist): n blocks of zeros that the program
// can read, and the value for Deny. It lasts as long as that value.
type DenyMemory struct {
	set    *ebpf.Map
	blocks [][16]uint32
}

// Words of block 0 that Deny writes: see bpf/deny.h.
const (
	denyNode = 12
	denyKeep = 13
)

// denySpec is the spec of the map of a set.
func denySpec(n int) *ebpf.MapSpec {
	return &ebpf.MapSpec{
		Name: "weir_deny_set", Type: ebpf.Array, KeySize: 4, ValueSize: denyBlock,
		MaxEntries: uint32(n), Flags: unix.BPF_F_MMAPABLE | innerMap,
	}
}

// setDenySpec gives a spec of the map of sets the map that a set is.
func (m *kernelMaps) setDenySpec(sets *ebpf.MapSpec) {
	if m.denies {
		sets.InnerMap = denySpec(1)
		return
	}
	sets.InnerMap.Flags = 0 // nothing will be put there
}

// knowsInnerMaps reports whether the kernel knows maps in a map that differ in size.
func knowsInnerMaps() bool {
	m, err := ebpf.NewMap(denySpec(1))
	return err == nil && m.Close() == nil
}

// Denies reports whether the program can deny packets. Kernels before 5.10 cannot: the packet loop
// does.
func (p *Program) Denies() bool { return p.maps.denies }

// NewDenyMemory returns memory of n blocks, if the program Denies.
func NewDenyMemory(n int) ([][16]uint32, *DenyMemory, error) {
	set, err := ebpf.NewMap(denySpec(n))
	if err != nil {
		return nil, nil, fmt.Errorf("deny lists: map of %d bytes: %w", n*denyBlock, err)
	}
	page := unix.Getpagesize()
	size := (n*denyBlock + page - 1) / page * page
	b, err := unix.Mmap(set.FD(), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("deny lists: map %d bytes into memory: %w", size, err), set.Close())
	}
	m := &DenyMemory{set, unsafe.Slice((*[16]uint32)(unsafe.Pointer(&b[0])), n)}
	runtime.AddCleanup(m, func(b []byte) { _ = unix.Munmap(b) }, b)
	return m.blocks, m, nil
}

// Deny has the program drop packets to frontends whose source is in a set. The bits of node are its
// lists about all frontends, those of keep its lists that keep established flows: of these the
// program drops TCP SYNs alone. A set takes the place of the last one at once; nil ends it.
func (p *Program) Deny(set *DenyMemory, node, keep uint16) error {
	if !p.maps.denies {
		return nil
	}
	sets := p.maps.steer.DenySets
	if set == nil {
		err := sets.Delete(uint32(0))
		if errors.Is(err, ebpf.ErrKeyNotExist) {
			err = nil
		}
		return wrapDeny(err)
	}
	set.blocks[0][denyNode], set.blocks[0][denyKeep] = uint32(node), uint32(keep)
	return wrapDeny(sets.Put(uint32(0), set.set))
}

func wrapDeny(err error) error {
	if err != nil {
		return fmt.Errorf("deny lists: %w", err)
	}
	return nil
}

// Denied are the packets that were dropped, by list.
func (p *Program) Denied() (sum [DenyLists]uint64, err error) {
	all, err := p.total()
	return all.Denied, err
}
