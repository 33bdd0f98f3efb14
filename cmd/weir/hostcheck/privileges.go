package hostcheck

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/cmd/weir/config"
	"github.com/weirlb/weir/cmd/weir/privilege"
	"github.com/weirlb/weir/lb/device"
	"github.com/weirlb/weir/lb/ports"
	"github.com/weirlb/weir/lb/steer"
	"github.com/weirlb/weir/lb/xsk"
)

// Capabilities is a set as in /proc/self/status (capabilities(7)).
type Capabilities uint64

// Has tells whether capability number c is in the set.
func (s Capabilities) Has(c int) bool { return s>>uint(c)&1 != 0 }

// needed are the capabilities without which Weir does not start, each with its purpose.
var needed = []struct {
	name string
	any  []int // any of these is enough
	why  string
}{
	{"CAP_NET_ADMIN", []int{unix.CAP_NET_ADMIN}, "attach XDP, make the host veth, change routes"},
	{"CAP_NET_RAW", []int{unix.CAP_NET_RAW}, "open AF_XDP sockets"},
	// These two are of Linux 5.8; before, and as a superset, CAP_SYS_ADMIN.
	{"CAP_BPF", []int{unix.CAP_BPF, unix.CAP_SYS_ADMIN}, "load BPF programs"},
	// Without it the verifier guards every program against speculation and
	// refuses the steering program's arithmetic with pointers.
	{"CAP_PERFMON", []int{unix.CAP_PERFMON, unix.CAP_SYS_ADMIN}, "have the verifier take the steering program"},
}

func checkPrivileges(fs *findings) {
	if err := Privileges(); err != nil {
		fs.add(Wrong, "privileges", "%v", err)
		return
	}
	fs.add(OK, "privileges", "all capabilities needed are there; weir run keeps no other")
	for part, err := range privilege.Available() {
		if err != nil {
			fs.add(Note, "privileges", "%s does not confine weir run: %v", part, err)
		}
	}
}

// Privileges is an error when this process lacks a capability that it needs.
func Privileges() error {
	have, err := effective()
	if err != nil {
		return err
	}
	if missing := missingFrom(have); len(missing) > 0 {
		return fmt.Errorf("missing %s: run as root, or grant them (systemd: AmbientCapabilities=, Kubernetes: securityContext.capabilities)",
			strings.Join(missing, ", "))
	}
	return nil
}

func missingFrom(have Capabilities) []string {
	var missing []string
	for _, n := range needed {
		found := false
		for _, c := range n.any {
			found = found || have.Has(c)
		}
		if !found {
			missing = append(missing, fmt.Sprintf("%s (%s)", n.name, n.why))
		}
	}
	return missing
}

// effective are this process's effective capabilities.
func effective() (Capabilities, error) { return effectiveOf(os.Getpid()) }

// effectiveOf are the effective capabilities of a process.
func effectiveOf(pid int) (Capabilities, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	return parseCapabilities(string(data))
}

func parseCapabilities(status string) (Capabilities, error) {
	for line := range strings.Lines(status) {
		if v, ok := strings.CutPrefix(line, "CapEff:"); ok {
			n, err := strconv.ParseUint(strings.TrimSpace(v), 16, 64)
			if err != nil {
				return 0, fmt.Errorf("/proc/self/status: CapEff: %w", err)
			}
			return Capabilities(n), nil
		}
	}
	return 0, fmt.Errorf("/proc/self/status has no CapEff")
}

// framesPerQueue is about the number of frames of a worker per interface, and again for
// frames to be sent.
const framesPerQueue = 4096

// checkLockedMemory: the kernel counts packet memory that it shares with a
// process against RLIMIT_MEMLOCK, unless that has CAP_IPC_LOCK. Weir raises the soft limit
// by itself, and the hard limit if it may. A running Weir needs the memory again for an
// interface that comes back.
func checkLockedMemory(fs *findings, cfg *config.Configuration, pid int) {
	have, err := effectiveOf(pid)
	if err != nil {
		return // said already, or the process is in another PID namespace
	}
	if have.Has(unix.CAP_IPC_LOCK) || have.Has(unix.CAP_SYS_RESOURCE) {
		fs.add(OK, "locked memory", "not limited")
		return
	}
	var limit unix.Rlimit
	if err := unix.Prlimit(pid, unix.RLIMIT_MEMLOCK, nil, &limit); err != nil {
		fs.add(Wrong, "locked memory", "prlimit: %v", err)
		return
	}
	links, _ := device.Links() // without it interfaces count once
	level, text, mend := lockable(limit.Max, packetMemory(cfg, devices(cfg, links)))
	fs.add(level, "locked memory", "%s", text)
	fs.mend("%s", mend)
}

// lockable judges a limit by the packet memory. The kernel counts it once for each
// mode in which it is registered: zero copy or not, packets of several buffers or not.
func lockable(limit, need uint64) (level Level, text, mend string) {
	const raise = "raise RLIMIT_MEMLOCK (ulimit -l, LimitMEMLOCK=infinity) or grant CAP_IPC_LOCK"
	switch {
	case limit < need:
		return Wrong, fmt.Sprintf("RLIMIT_MEMLOCK is %d MiB and the packet buffers may take %d MiB", limit>>20, need>>20), raise
	case limit/2 < need:
		return Note, fmt.Sprintf("%d MiB may be locked, at most %d MiB are needed, and twice that where zero copy is granted or only some interfaces have an MTU above 3,500",
			limit>>20, need>>20), raise
	}
	return OK, fmt.Sprintf("%d MiB may be locked, at most %d MiB are needed for each mode of interfaces", limit>>20, need>>20), ""
}

// bound counts the devices and queues that AF_XDP sockets will be bound to.
type bound struct {
	devices int
	queues  int // of the device with the most, 0 where nothing says
}

// packetMemory is how much memory the packet buffers take at the most, in bytes:
// with an MTU above 1,536 somewhere, else half of it.
func packetMemory(cfg *config.Configuration, to bound) uint64 {
	workers := int(cfg.Workers.Count)
	if workers == 0 {
		workers = len(cfg.Workers.CPUs)
		if workers == 0 {
			workers = runtime.NumCPU()
		}
		if to.queues > 0 {
			workers = min(workers, to.queues)
		}
	}
	ports := to.devices + 1 // and the host veth
	return uint64(workers) * uint64(ports+1) * framesPerQueue * xsk.FrameSize
}

// devices is how many there are to be bound: a bond has its members, and may get
// more. A device that cannot be resolved, which another check reports, counts once.
func devices(cfg *config.Configuration, links []device.Link) (to bound) {
	seen, unknown, spare := map[int]bool{}, 0, 0
	for _, in := range cfg.Attached() {
		resolved, err := device.Resolve(in.Name, links)
		if err != nil {
			unknown++
		}
		for _, p := range resolved {
			seen[p.Device] = true
			if q, err := steer.RxQueues(p.Device); err == nil {
				to.queues = max(to.queues, q.Rx)
			}
			if p.Member {
				spare = ports.SpareMembers
			}
		}
	}
	to.devices = len(seen) + unknown + spare
	return to
}
