package flowcache

import (
	"fmt"

	"github.com/cilium/ebpf/rlimit"
)

// Probe makes an array that can be mapped, and checks that a store is seen by the kernel.
func Probe() error {
	_ = rlimit.RemoveMemlock()
	a, err := makeArray("weir_probe", cell, 1)
	if err != nil {
		return err
	}
	defer func() { _ = a.close() }()
	a.b[cell-1] = 1
	var got [cell]byte
	if err := a.m.Lookup(uint32(0), &got); err != nil {
		return fmt.Errorf("read a mapped array: %w", err)
	}
	if got[cell-1] != 1 {
		return fmt.Errorf("a mapped array is not the kernel's memory")
	}
	return nil
}
