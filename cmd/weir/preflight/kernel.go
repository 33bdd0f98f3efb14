package preflight

import (
	"errors"
	"io/fs"
	"os"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/features"
	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/lb/xsk"
)

// Kernel probes what the kernel can do. The first element is without which
// nothing goes; the others have a way round.
func Kernel() []xsk.Probe {
	return []xsk.Probe{
		xsk.ProbeSocket(),
		xsk.ProbeTxMetadata(),
		xsk.ProbeMultiBuffer(),
		xsk.ProbeNetdevFeatures(),
	}
}

// bpffs is where programs are pinned.
const bpffs = "/sys/fs/bpf"

func checkKernel(f *findings) {
	checkBPF(f)
	for i, p := range Kernel() {
		switch {
		case p.OK():
			f.add(OK, "kernel", "%s: yes", p.Name)
		case errors.Is(p.Err, fs.ErrPermission):
			f.add(Note, "kernel", "%s: cannot be tried without privileges", p.Name)
		case i == 0:
			f.add(Wrong, "kernel", "%s: %v (needs Linux %s with CONFIG_XDP_SOCKETS)", p.Name, p.Err, p.Kernel)
		case errors.Is(p.Err, unix.EBUSY):
			f.add(Note, "kernel", "%s: cannot be tried at the moment: %v", p.Name, p.Err)
		default:
			f.add(Note, "kernel", "%s: no (%v; Linux %s has it): Weir %s", p.Name, p.Err, p.Kernel, p.Without)
		}
	}
}

func checkBPF(f *findings) {
	for _, need := range []struct {
		name string
		err  error
	}{
		{"XDP programs", features.HaveProgramType(ebpf.XDP)},
		{"XSK maps", features.HaveMapType(ebpf.XSKMap)},
	} {
		switch {
		case need.err == nil:
			f.add(OK, "kernel", "%s: yes", need.name)
		case errors.Is(need.err, fs.ErrPermission):
			f.add(Note, "kernel", "%s: cannot be tried without privileges", need.name)
		default:
			f.add(Wrong, "kernel", "%s: %v", need.name, need.err)
		}
	}
	var st unix.Statfs_t
	switch err := unix.Statfs(bpffs, &st); {
	case err != nil:
		f.add(Note, "kernel", "%s: %v: the XDP program cannot be pinned, and a restart detaches it for a moment", bpffs, err)
	case st.Type != unix.BPF_FS_MAGIC:
		f.add(Note, "kernel", "%s is not a BPF file system (mount -t bpf bpf %s): the XDP program cannot be pinned, and a restart detaches it for a moment", bpffs, bpffs)
	case unix.Access(bpffs, unix.W_OK) != nil:
		f.add(Note, "kernel", "%s is not writable by uid %d: the XDP program cannot be pinned, and a restart detaches it for a moment", bpffs, os.Getuid())
	default:
		f.add(OK, "kernel", "%s: programs can be pinned", bpffs)
	}
}
