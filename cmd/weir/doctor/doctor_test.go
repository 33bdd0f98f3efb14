package doctor

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/cmd/weir/config"
	"github.com/weirlb/weir/cmd/weir/problem"
)

// found is the report of a patient as "verdict subject: fact | mend", a line per finding.
func found(p *patient) string {
	var b strings.Builder
	for _, f := range p.report.Findings {
		fmt.Fprintf(&b, "%s %s: %s | %s\n", f.Verdict, f.Subject, f.Fact, f.Mend)
	}
	return b.String()
}

func newPatient(s *api.Status) *patient {
	return &patient{cfg: config.Default(), status: s, report: &Report{}}
}

// machine is a directory with the interrupts of a virtio NIC, by number: handler and CPUs.
func machine(t *testing.T, irqs map[int][2]string) string {
	t.Helper()
	root := t.TempDir()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	pci := filepath.Join(root, "sys/devices/pci0/0000:00:04.0")
	must(os.MkdirAll(pci+"/virtio1/net/eth0", 0o755))
	must(os.MkdirAll(pci+"/msi_irqs", 0o755))
	must(os.MkdirAll(root+"/sys/class/net", 0o755))
	must(os.Symlink(pci+"/virtio1/net/eth0", root+"/sys/class/net/eth0"))
	must(os.Symlink(pci+"/virtio1", pci+"/virtio1/net/eth0/device"))
	for n, irq := range irqs {
		must(os.WriteFile(fmt.Sprintf("%s/msi_irqs/%d", pci, n), nil, 0o644))
		dir := fmt.Sprintf("%s/proc/irq/%d", root, n)
		must(os.MkdirAll(filepath.Join(dir, irq[0]), 0o755))
		must(os.WriteFile(dir+"/smp_affinity_list", []byte("0-3\n"), 0o644))
		must(os.WriteFile(dir+"/effective_affinity_list", []byte(irq[1]+"\n"), 0o644))
	}
	return root
}

func TestInterruptsOfAllQueuesOnASingleCPU(t *testing.T) {
	for _, tt := range []struct {
		name, second, want string
	}{
		{"spread", "2", "ok interrupts of eth0: 2 queues, on CPUs [1 2]; workers on CPUs [2 3] | \n"},
		{"single", "1", "warning interrupts of eth0: CPU 1 gets those of all 2 queues, and limits all workers | " +
			"echo 2 > /proc/irq/26/smp_affinity_list; echo 3 > /proc/irq/28/smp_affinity_list\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			root := machine(t, map[int][2]string{
				25: {"virtio1-config", "0"}, 26: {"virtio1-input.0", "1"}, 27: {"virtio1-output.0", "3"}, 28: {"virtio1-input.1", tt.second},
			})
			p := newPatient(&api.Status{})
			p.judgeInterrupts("eth0", interruptsOf(root, "eth0"), []int{2, 3})
			if got := found(p); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func TestQueuesWithoutAWorker(t *testing.T) {
	p := newPatient(&api.Status{
		Workers: make([]api.Worker, 2),
		Interfaces: []api.Interface{
			{Name: "eth0", Queues: 8, BoundQueues: 2}, {Name: "eth1", Queues: 2, BoundQueues: 2},
			{Name: "weir-xdp", Queues: 2, BoundQueues: 2, HostVeth: true},
		},
	})
	p.queues()
	want := "warning interface eth0: 2 of 8 receive queues have a worker: packets of the others go to the kernel | ethtool -L eth0 combined 2\n" +
		"ok interface eth1: 2 receive queues, each with a worker | \n"
	if got := found(p); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestPathsNarrowerThanTheClients(t *testing.T) {
	mtus := map[string]int{"eth0": 9000, "eth1": 1500}
	for _, tt := range []struct {
		name   string
		to     path
		widest int
		want   Verdict
		mend   string
	}{
		{"as wide", path{iface: "eth1", mtu: 1500}, 1500, OK, ""},
		{"narrow", path{iface: "eth1", mtu: 1400}, 1500, Fault, "ip link set eth1 mtu 1500"},
		{"beside jumbo frames", path{iface: "eth1", mtu: 1500}, 9000, Warning, "ip link set eth1 mtu 9000"},
		{"overlay of pods", path{iface: "vxlan0", mtu: 1450}, 1500, OK, ""},
		{"tunnel", path{iface: "eth1", mtu: 1480, outer: 20, mode: "ipip"}, 1500, Warning,
			"ip link set eth1 mtu 1520, or the annotation weir.dev/mss-clamp: auto"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := &Report{}
			s := survey{mtus, map[path]netip.Addr{tt.to: netip.MustParseAddr("10.1.2.3")}}
			s.judgePath(r, tt.to, tt.widest, "eth0")
			if f := r.Findings[0]; f.Verdict != tt.want || f.Mend != tt.mend {
				t.Errorf("got %+v", f)
			}
		})
	}
}

func TestClockThatHasJumped(t *testing.T) {
	const jumped = "warning clock: it has jumped by 1h0m0s since the start of Weir"
	for jump, want := range map[time.Duration]bool{0: false, time.Hour: true} {
		p := newPatient(&api.Status{StartTime: time.Now().Add(-time.Minute - jump), UptimeSeconds: 60})
		p.clock()
		if got := found(p); strings.Contains(got, jumped) != want {
			t.Errorf("%v: got %q", jump, got)
		}
	}
}

func TestVerdictsOnTheRunningWeir(t *testing.T) {
	p := newPatient(&api.Status{
		PID: 7, Healthy: true, Synced: true,
		Problems: []problem.Problem{
			{Severity: problem.Error, Object: "Interface eth1", Reason: "is missing"},
			{Severity: problem.Warning, Object: "Node edge-1", Field: "spec", Reason: "unknown"},
			{Severity: problem.Note, Object: "Weir", Reason: "no TCX"},
		},
		ProblemsLeftOut: 3,
	})
	p.running()
	_, got, _ := strings.Cut(found(p), "\n")
	want := "fault Interface eth1: is missing | \nwarning Node edge-1: spec: unknown | \nwarning weir: 3 more problems | weir status --problems\n"
	if got != want || p.report.Faults() != 1 {
		t.Errorf("got %q, %d faults", got, p.report.Faults())
	}
	p = newPatient(&api.Status{PID: 7, Unhealthy: "worker 1 is stalled"})
	p.running()
	if got := found(p); !strings.HasPrefix(got, "fault weir: process 7 is not healthy: worker 1 is stalled | ") {
		t.Errorf("got %q", got)
	}
}

func TestTableHoldsNoControlCharacters(t *testing.T) {
	r := Report{Findings: []Finding{{Fault, "interface \x1b[2J", "is\ndown", "ip link set \x07"}}}
	var b strings.Builder
	if err := r.table(&b); err != nil || strings.ContainsAny(b.String(), "\x1b\x07") || strings.Count(b.String(), "\n") != 2 {
		t.Errorf("%q, %v", b.String(), err)
	}
}

// What counts is what Weir is attached to, not what its configuration finds now.
func TestAttachedInterfacesAndThoseOfTheNextStart(t *testing.T) {
	running := &api.Status{
		Interfaces: []api.Interface{
			{Name: "eth4", Interface: "bond0"}, {Name: "eth5", Interface: "bond0"}, {Name: "eth0"},
			{Name: "eth0.7", Interface: "eth0.7", Device: "eth0", VLAN: 7}, {Name: "weir-xdp", HostVeth: true},
			{Name: "eth3", Interface: "eth3.8", Device: "eth3"}, {Name: "eth3.8", Interface: "eth3.8", Device: "eth3", VLAN: 8},
		},
		Absent: []api.AbsentInterface{{Name: "eth9", Reason: "is gone"}},
	}
	const same, mend = "", "systemctl restart weir, or delete the pod; to keep these, give their names in interfaces"
	for _, tt := range []struct {
		name string
		next []string
		want string
	}{
		{"the same", []string{"eth0", "eth0.7", "eth9", "bond0", "eth3.8"}, same},
		{"the same, of a status", []string{"bond0", "eth0", "eth0.7", "eth3.8"}, same},
		{"another", []string{"bond0", "eth1", "eth0.7", "eth9"},
			"warning interfaces: attached: bond0, eth0, eth0.7, eth3.8; the next start attaches bond0, eth0.7, eth1, eth9 | " + mend + "\n"},
		{"one more", []string{"bond0", "eth0", "eth0.7", "eth2"},
			"warning interfaces: attached: bond0, eth0, eth0.7, eth3.8; the next start attaches bond0, eth0, eth0.7, eth2 | " + mend + "\n"},
		{"fewer", []string{"bond0"}, "warning interfaces: attached: bond0, eth0, eth0.7, eth3.8; the next start attaches bond0 | " + mend + "\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := newPatient(running)
			for _, name := range tt.next {
				p.cfg.Interfaces = append(p.cfg.Interfaces, config.Interface{Name: name})
			}
			p.nextInterfaces()
			if got := found(p); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}

	p := newPatient(&api.Status{})
	p.cfg.Interfaces = append(p.cfg.Interfaces, config.Interface{Name: "eth0"})
	if p.nextInterfaces(); found(p) != "" {
		t.Errorf("before it is attached to any: %q", found(p))
	}
	p = newPatient(&api.Status{Interfaces: []api.Interface{{Name: "lo"}}})
	if mtus := mtusOf(p.attached()); len(mtus) != 1 || mtus["lo"] == 0 {
		t.Errorf("MTUs of attached interfaces: %v", mtus)
	}
}
