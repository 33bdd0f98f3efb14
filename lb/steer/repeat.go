package steer

import (
	"fmt"
	"maps"
	"runtime"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"
)

// bpfFlagIPv6 is BPF_F_IPV6 of bpf_l4_csum_replace (Linux 6.16, and older stable kernels).
const bpfFlagIPv6 = 1 << 7

// repeatSpec is the spec of the programs that read the flow table, over the maps of the
// steering program.
func (ps *programs) repeatSpec() (*ebpf.CollectionSpec, map[string]*ebpf.Map, error) {
	spec, err := loadRepeat()
	if err != nil {
		return nil, nil, err
	}
	shared := ps.maps.byName()
	maps.Copy(shared, ps.flows)
	for name, m := range spec.Maps {
		if name == ".rodata" {
			continue
		}
		if shared[name] == nil {
			return nil, nil, fmt.Errorf("map %s is missing", name)
		}
		m.MaxEntries, m.Flags = shared[name].MaxEntries(), shared[name].Flags()
	}
	ps.maps.setDenySpec(spec.Maps[steerMapDenySets])
	if shared[repeatMapFlowCounts].MaxEntries() > 1 {
		if err := spec.Variables[repeatVarCounts].Set(uint8(1)); err != nil {
			return nil, nil, err
		}
	}
	if !LoadsInOrder(runtime.GOARCH) {
		if err := spec.Variables[repeatVarUnorderedLoads].Set(uint8(1)); err != nil {
			return nil, nil, err
		}
	}
	return spec, shared, nil
}

// LoadsInOrder reports whether machines of an architecture keep loads in order.
func LoadsInOrder(arch string) bool { return slices.Contains([]string{"386", "amd64", "s390x"}, arch) }

// loadRepeat loads the XDP program that forwards by the flow table.
func (ps *programs) loadRepeat() (*ebpf.Program, error) { return ps.loadXDP(true) }

// loadAsking loads the XDP program that steers by the flow table, and forwards nothing.
func (ps *programs) loadAsking() (*ebpf.Program, error) { return ps.loadXDP(false) }

func (ps *programs) loadXDP(repeats bool) (*ebpf.Program, error) {
	prog, err := ps.withFrags(func(frags bool) (*ebpf.Program, error) {
		spec, shared, err := ps.repeatSpec()
		if err != nil {
			return nil, err
		}
		hasFrags := uint8(1)
		if !frags {
			hasFrags = 0
			spec.Programs[repeatProgWeirRepeat].Flags &^= unix.BPF_F_XDP_HAS_FRAGS
		}
		if err := spec.Variables[repeatVarHasFrags].Set(hasFrags); err != nil {
			return nil, err
		}
		if !repeats {
			if err := spec.Variables[repeatVarRepeats].Set(uint8(0)); err != nil {
				return nil, err
			}
		}
		var programs struct {
			WeirRepeat *ebpf.Program `ebpf:"weir_repeat"`
		}
		err = spec.LoadAndAssign(&programs, &ebpf.CollectionOptions{MapReplacements: shared})
		return programs.WeirRepeat, err
	})
	if err != nil {
		return nil, fmt.Errorf("load XDP program with flow table: %w%s", err, loadErrorHint(err))
	}
	return prog, nil
}

// loadIngress loads the TCX program; flag reports whether bpf_l4_csum_replace knows BPF_F_IPV6.
func (ps *programs) loadIngress(flag bool) (*ebpf.Program, error) {
	spec, shared, err := ps.repeatSpec()
	if err != nil {
		return nil, err
	}
	if flag {
		if err := spec.Variables[repeatVarIpv6Flag].Set(uint64(bpfFlagIPv6)); err != nil {
			return nil, err
		}
	}
	var programs struct {
		WeirIngress *ebpf.Program `ebpf:"weir_ingress"`
	}
	if err := spec.LoadAndAssign(&programs, &ebpf.CollectionOptions{MapReplacements: shared}); err != nil {
		return nil, fmt.Errorf("load TCX program: %w%s", err, loadErrorHint(err))
	}
	return programs.WeirIngress, nil
}

// knowsIPv6Sums reports whether bpf_l4_csum_replace knows BPF_F_IPV6, by a program that
// returns what the helper returns for a packet of zeros.
func knowsIPv6Sums() bool {
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "weir_probe", Type: ebpf.SchedCLS, License: "Apache-2.0",
		Instructions: asm.Instructions{
			asm.Mov.Imm(asm.R2, 14+40+16),
			asm.Mov.Imm(asm.R3, 0),
			asm.Mov.Imm(asm.R4, 1),
			asm.Mov.Imm(asm.R5, bpfFlagIPv6|1<<4), // BPF_F_PSEUDO_HDR
			asm.FnL4CsumReplace.Call(),
			asm.Return(),
		},
	})
	if err != nil {
		return false
	}
	defer prog.Close()
	result, _, err := prog.Test(make([]byte, 128))
	return err == nil && result == 0
}
