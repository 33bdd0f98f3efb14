package doctor

import (
	"cmp"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/weirlb/weir/lb/hostveth"
)

// sysctl reads a setting of this network namespace: net/ipv4/ip_forward. ok is false if
// there is none of that name.
func sysctl(key string) (value string, ok bool) {
	dir := cmp.Or(os.Getenv("WEIR_PROC_SYS"), "/proc/sys")
	data, err := os.ReadFile(filepath.Join(dir, key))
	return strings.TrimSpace(string(data)), err == nil
}

// sysctls looks at those that Weir sets at the start, and that sysctl --system or another
// program may have changed since.
func (p *patient) sysctls() {
	if p.status == nil || len(p.cfg.HostVeth.Prefixes) == 0 {
		return
	}
	p.reversePath()
	p.forwarding(hostveth.KernelEnd)
	for name := range p.paths.behindKernel() {
		p.forwarding(name)
	}
}

// reversePath judges rp_filter of the host veth: the kernel takes the larger value of
// `all` and the interface, and 1 is strict.
func (p *patient) reversePath() {
	key := "net/ipv4/conf/" + hostveth.KernelEnd + "/rp_filter"
	own, ok := number(key)
	all, _ := number("net/ipv4/conf/all/rp_filter")
	switch {
	case !ok:
		p.add(Fault, "rp_filter", "interface %s is missing: endpoints behind the kernel get no packets", hostveth.KernelEnd).
			mend("restart Weir")
	case max(own, all) == 1:
		p.add(Fault, "rp_filter", "it is strict on %s: the kernel drops packets to endpoints behind it", hostveth.KernelEnd).
			mend("sysctl -w %s=2", dotted(key))
	default:
		p.add(OK, "rp_filter", "%d on %s: packets of any client pass", max(own, all), hostveth.KernelEnd)
	}
}

// forwarding judges whether the kernel forwards packets that arrive on an interface.
func (p *patient) forwarding(name string) {
	key := "net/ipv4/conf/" + name + "/forwarding"
	switch on, ok := number(key); {
	case !ok:
	case on == 0:
		p.add(Fault, "forwarding", "it is off on %s: the kernel drops packets of endpoints behind it", name).
			mend("sysctl -w %s=1", dotted(key))
	default:
		p.add(OK, "forwarding", "it is on for %s", name)
	}
}

func number(key string) (int, bool) {
	text, ok := sysctl(key)
	n, err := strconv.Atoi(text)
	return n, ok && err == nil
}

// dotted is a key in the form of sysctl(8), where an interface may have dots in its name.
func dotted(key string) string {
	return strings.NewReplacer("/", ".", ".", "/").Replace(key)
}
