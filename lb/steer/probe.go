package steer

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/lb/xsk"
)

// Probes tries every kernel feature that Weir uses, in the order in which
// documentation shows them. They change nothing outside of the calling thread's
// network namespace and leave nothing behind.
func Probes(pinDir string) []xsk.Probe { return ProbesBeside(ProbeHooks(), pinDir) }

// HookProbes are the probes that need a network namespace of their own, and so privileges
// that a running Weir has given up.
type HookProbes struct{ link, tcx xsk.Probe }

// ProbeHooks tries the hooks.
func ProbeHooks() HookProbes { return HookProbes{ProbeXDPLink(), ProbeTCX()} }

// ProbesBeside is Probes with those of the hooks done.
func ProbesBeside(hooks HookProbes, pinDir string) []xsk.Probe {
	return []xsk.Probe{
		xsk.ProbeSocket(),
		hooks.link,
		ProbeFlowTable(),
		ProbeFrags(),
		hooks.tcx,
		ProbeBPFFS(pinDir),
		xsk.ProbeBoundRings(),
		xsk.ProbeMultiBuffer(),
		xsk.ProbeTxMetadata(),
		xsk.ProbeNetdevFeatures(),
		ProbeQueues(),
	}
}

// ProbeXDPLink attaches a program that passes everything to the loopback
// interface of a new network namespace, by a bpf_link.
func ProbeXDPLink() xsk.Probe {
	p := xsk.Probe{Name: "XDP attached by a bpf_link", Kernel: "5.9", Without: "does not start"}
	p.Err = inNewNetns(func() error {
		prog, err := passProgram(0)
		if err != nil {
			return err
		}
		defer prog.Close()
		// The loopback interface has index 1 in every namespace, and no native
		// XDP.
		l, err := link.AttachXDP(link.XDPOptions{Program: prog, Interface: 1, Flags: link.XDPGenericMode})
		if err != nil {
			return err
		}
		return l.Close()
	})
	return p
}

// ProbeFrags loads a program for packets of several buffers.
func ProbeFrags() xsk.Probe {
	p := xsk.Probe{
		Name: "XDP programs for packets of several buffers", Kernel: "5.18",
		Without: "needs an MTU of at most about 3500 bytes",
	}
	prog, err := passProgram(unix.BPF_F_XDP_HAS_FRAGS)
	if err == nil {
		err = prog.Close()
	}
	p.Err = err
	return p
}

// ProbeFlowTable makes an array that a process can map, and loads a program with an atomic
// operation with a result and a coarse clock: the programs that read the flow table need them.
func ProbeFlowTable() xsk.Probe {
	p := xsk.Probe{
		Name: "BPF programs that share memory with a process", Kernel: "5.12",
		Without: "forwards packets of established flows itself, whatever flowCache.mode is",
	}
	m, err := ebpf.NewMap(&ebpf.MapSpec{
		Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1, Flags: unix.BPF_F_MMAPABLE,
	})
	if err != nil {
		p.Err = err
		return p
	}
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "weir_probe", Type: ebpf.XDP, License: "Apache-2.0",
		Instructions: asm.Instructions{
			asm.FnKtimeGetCoarseNs.Call(),
			asm.StoreMem(asm.R10, -8, asm.R0, asm.DWord),
			asm.Mov.Imm(asm.R0, 0),
			asm.Mov.Imm(asm.R1, 1),
			asm.CmpXchg.Mem(asm.R10, asm.R1, asm.DWord, -8),
			asm.Mov.Imm(asm.R0, 2), asm.Return(),
		},
	})
	if err == nil {
		err = prog.Close()
	}
	p.Err = errors.Join(err, m.Close())
	return p
}

// ProbeBPFFS pins a map under dir ("" is DefaultPinDir) and removes it again.
func ProbeBPFFS(dir string) xsk.Probe {
	if dir == "" {
		dir = DefaultPinDir
	}
	p := xsk.Probe{
		Name: "BPF file system", Kernel: "4.4",
		Without: "forwards packets of established flows itself at hook xdp, and attaches without a pin: XDP is detached when Weir ends, " +
			"and attached anew by the next start",
	}
	p.Err = probePin(dir)
	return p
}

// probePrefix begins the names of the probes' pins.
const probePrefix = "probe-"

func probePin(dir string) error {
	if err := checkBPFFS(dir); err != nil {
		return fmt.Errorf("%s: %w", dir, err)
	}
	_, statErr := os.Stat(dir)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if errors.Is(statErr, os.ErrNotExist) {
		defer os.Remove(dir)
	}
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1})
	if err != nil {
		return err
	}
	defer m.Close()
	if err := m.Pin(filepath.Join(dir, fmt.Sprint(probePrefix, unix.Gettid()))); err != nil {
		return err
	}
	return m.Unpin()
}

// ProbeQueues asks for the queues of an interface. Whether the answer would tell of AF_XDP
// sockets (Linux 6.15) shows only where there is one.
func ProbeQueues() xsk.Probe {
	p := xsk.Probe{
		Name: "queues over netlink", Kernel: "6.8 (with their sockets: 6.15)",
		Without: "takes the number of queues from ethtool",
	}
	_, p.Err = xsk.DeviceQueues(1)
	return p
}

// passProgram loads "return XDP_PASS".
func passProgram(flags uint32) (*ebpf.Program, error) {
	return ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "weir_probe", Type: ebpf.XDP, Flags: flags, License: "Apache-2.0",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 2), asm.Return()},
	})
}

// passIngress loads "return TCX_NEXT".
func passIngress() (*ebpf.Program, error) {
	return ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "weir_probe", Type: ebpf.SchedCLS, AttachType: ebpf.AttachTCXIngress, License: "Apache-2.0",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, -1), asm.Return()},
	})
}

// inNewNetns runs f on a thread in a new network namespace, which ends with the thread.
func inNewNetns(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		home, err := netns.Get()
		if err != nil {
			done <- err
			return
		}
		defer home.Close()
		ns, err := netns.New() // enters it too
		if err != nil {
			runtime.UnlockOSThread()
			done <- err
			return
		}
		err = f()
		ns.Close()
		if netns.Set(home) == nil {
			runtime.UnlockOSThread()
		} // else the thread is fit for nothing else and ends here
		done <- err
	}()
	return <-done
}
