package e2e

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"

	"github.com/weirlb/weir/cmd/weir/doctor"
)

// doctor is the report of `weir doctor` on the edge node, and the exit status.
func (f *fixture) doctor(t *testing.T, cmd *exec.Cmd) (doctor.Report, int) {
	t.Helper()
	stdout, stderr, exit := f.inEdge(t, cmd)
	var r doctor.Report
	if err := json.Unmarshal([]byte(stdout), &r); err != nil {
		t.Fatalf("exit status %d: %v\n%s%s", exit, err, stdout, stderr)
	}
	return r, exit
}

// faultsOf are the faults of a report.
func faultsOf(r doctor.Report) (list []doctor.Finding) {
	for _, f := range r.Findings {
		if f.Verdict == doctor.Fault {
			list = append(list, f)
		}
	}
	return list
}

// faultCase is a machine with a single fault.
type faultCase struct {
	name    string
	cause   func(t *testing.T, f *fixture) (undo func())
	args    []string // before the command
	stopped bool     // no Weir is running
	// Of the finding.
	subject, fact, mend string
	// mended: the mend is a command, which is run.
	mended bool
}

// setting is a cause: a sysctl of the edge node.
func setting(key, value string) func(*testing.T, *fixture) func() {
	return func(t *testing.T, f *fixture) func() {
		old, err := f.Edge.Edge.Sysctl(key)
		must(t, err)
		must(t, f.Edge.Edge.SetSysctl(key, value))
		return func() { must(t, f.Edge.Edge.SetSysctl(key, old)) }
	}
}

func narrowMTU(t *testing.T, f *fixture) func() {
	f.ip(t, "link", "set", "eth1", "mtu", "1400")
	return func() { f.ip(t, "link", "set", "eth1", "mtu", "1500") }
}

// foreignXDP attaches a program that passes everything.
func foreignXDP(t *testing.T, f *fixture) func() {
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "stranger", Type: ebpf.XDP, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 2), asm.Return()},
	})
	must(t, err)
	var l link.Link
	must(t, f.Edge.Edge.Do(func() (err error) {
		l, err = link.AttachXDP(link.XDPOptions{Program: p, Interface: f.indexOf(t, "eth0"), Flags: link.XDPGenericMode})
		return err
	}))
	return func() {
		l.Close()
		p.Close()
	}
}

func nothing(*testing.T, *fixture) func() { return func() {} }

var faultCases = []faultCase{
	{
		name: "narrow MTU", cause: narrowMTU, subject: "path by eth1", fact: "take packets of 1400 bytes, and eth0 those of 1500",
		mend: "ip link set eth1 mtu 1500", mended: true,
	},
	{
		name: "overlapping ports", cause: setting("net/ipv4/ip_local_port_range", "32768 65535"), subject: "configuration",
		fact: "snat.ports: 61000-65535 overlaps the kernel's ephemeral ports 32768-65535", mend: "sysctl -w net.ipv4.ip_local_reserved_ports=61000-65535",
	},
	{
		name: "low memlock", cause: nothing, subject: "locked memory", fact: "RLIMIT_MEMLOCK is 1 MiB", mend: "LimitMEMLOCK=infinity",
		args: []string{"setpriv", "--bounding-set=-ipc_lock,-sys_resource", "sh", "-c", `ulimit -l 1024 && exec "$0" "$@" --admin-socket /nonexistent/weir.sock`},
	},
	{
		name: "wrong rp_filter", cause: setting("net/ipv4/conf/weir-host/rp_filter", "1"), subject: "rp_filter", fact: "it is strict on weir-host",
		mend: "sysctl -w net.ipv4.conf.weir-host.rp_filter=2", mended: true,
	},
	{
		name: "no forwarding", cause: setting("net/ipv4/conf/cni0/forwarding", "0"), subject: "forwarding", fact: "it is off on cni0",
		mend: "sysctl -w net.ipv4.conf.cni0.forwarding=1", mended: true,
	},
	{
		name: "foreign XDP program", cause: foreignXDP, stopped: true, subject: "interface eth0",
		fact: "XDP program stranger", mend: "bpftool link detach id ",
	},
}

// A machine with a single fault: weir doctor names the fault and the mend, and nothing else.
// Where the mend is a command, the machine is healthy after it.
func TestWireDoctorNamesTheFault(t *testing.T) {
	f := ownFixture(t, options{services: kinds})
	command := func(args ...string) *exec.Cmd {
		args = append(args, f.binary, "doctor", "-o", "json", "--config", f.path("config.yaml"))
		return exec.Command(args[0], args[1:]...)
	}
	running := true
	healthy := func(t *testing.T, when string) {
		t.Helper()
		if r, exit := f.doctor(t, command()); exit != 0 || r.Running != running || len(faultsOf(r)) > 0 {
			t.Errorf("%s: exit status %d: %+v", when, exit, r)
		}
	}
	healthy(t, "at first")
	for _, c := range faultCases {
		if c.stopped && running {
			must(t, f.weir.Stop(within))
			running = false
			healthy(t, "without Weir")
		}
		t.Run(c.name, func(t *testing.T) {
			undo := c.cause(t, f)
			defer undo()
			r, exit := f.doctor(t, command(c.args...))
			found := faultsOf(r)
			as := func(x doctor.Finding) bool {
				return x.Subject == c.subject && strings.Contains(x.Fact, c.fact) && strings.Contains(x.Mend, c.mend)
			}
			if exit != 1 || !slices.ContainsFunc(found, as) {
				t.Errorf("exit status %d, not found: %+v", exit, found)
			}
			for _, x := range found {
				if !as(x) {
					t.Errorf("another fault: %+v", x)
				}
			}
			if c.mended {
				if _, stderr, exit := f.inEdge(t, exec.Command("sh", "-c", c.mend)); exit != 0 {
					t.Fatalf("%s: exit status %d: %s", c.mend, exit, stderr)
				}
				healthy(t, "after "+c.mend)
			}
		})
	}
	healthy(t, "in the end")
}

// Without flags the configuration is that of the running Weir, and without that the examination
// is for a start.
func TestWireDoctorWithoutFlags(t *testing.T) {
	f := ownFixture(t, options{services: []service{toPod}})
	socket := []string{"--admin-socket", f.path("weir.sock")}
	r, exit := f.doctor(t, f.command(append([]string{"doctor", "-o", "json"}, socket...)...))
	path := func(x doctor.Finding) bool { return x.Subject == "path by cni0" && x.Verdict == doctor.OK }
	if exit != 0 || !r.Running || r.Node != "edge-1" || !slices.ContainsFunc(r.Findings, path) {
		t.Errorf("exit status %d: %+v", exit, r)
	}
	for _, subject := range []string{"configuration", "firewall", "offloads"} { // where all is well, too
		if !slices.ContainsFunc(r.Findings, func(x doctor.Finding) bool { return x.Subject == subject }) {
			t.Errorf("%s leaves no finding: %+v", subject, r.Findings)
		}
	}
	must(t, f.weir.Stop(within))
	stdout, stderr, exit := f.inEdge(t, f.command("doctor", "--config", f.path("config.yaml")))
	if exit != 0 || !strings.Contains(stdout, "no Weir is running") {
		t.Errorf("exit status %d: %s%s", exit, stdout, stderr)
	}
}

// ip runs ip(8) on the edge node.
func (f *fixture) ip(t *testing.T, args ...string) {
	t.Helper()
	if _, stderr, exit := f.inEdge(t, exec.Command("ip", args...)); exit != 0 {
		t.Fatal(fmt.Sprint(args), stderr)
	}
}
