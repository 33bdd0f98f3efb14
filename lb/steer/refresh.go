package steer

import (
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"
)

// xdpDrop is XDP_DROP.
const xdpDrop = 1

// refresh puts the program of an attachment on every receive queue that the interface has now.
// Queues that a veth gets while a program is attached are without it (veth_enable_range_safe in
// drivers/net/veth.c), and their packets go to the kernel. The driver goes through the queues
// when the program is replaced, and a link takes only another program for a replacement. The
// one in between drops packets: the kernel would answer them with RST.
func (l links) refresh(a *Attachment) error {
	if a.Hook != XDP || a.Mode != Native {
		return nil // its program is not with the queues
	}
	prog, err := l.programs.of(a.asked())
	if err != nil {
		return err
	}
	between, err := dropProgram(!l.programs.noFrags.Load())
	if err != nil {
		return fmt.Errorf("refresh the program of interface %d: %w%s", a.IfIndex, err, loadErrorHint(err))
	}
	defer between.Close()
	if err := a.link.Update(between); err != nil {
		return fmt.Errorf("refresh the program of interface %d: %w", a.IfIndex, err)
	}
	if err := a.link.Update(prog); err != nil {
		return fmt.Errorf("refresh the program of interface %d, which drops all packets: %w", a.IfIndex, err)
	}
	return nil
}

// dropProgram loads "return XDP_DROP".
func dropProgram(frags bool) (*ebpf.Program, error) {
	spec := &ebpf.ProgramSpec{
		Name: "weir_drop", Type: ebpf.XDP, AttachType: ebpf.AttachXDP, License: "Apache-2.0",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, xdpDrop), asm.Return()},
	}
	if frags {
		spec.Flags = unix.BPF_F_XDP_HAS_FRAGS
	}
	return ebpf.NewProgram(spec)
}
