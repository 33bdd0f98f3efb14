package doctor

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/lb/steer"
)

// nextInterfaces tells what selectors have found. The running Weir is attached to what they
// found at its start.
func (p *patient) nextInterfaces() {
	var attached, next []string
	if p.status != nil {
		attached = attachedNames(p.status)
	}
	isAttached := func(name string) bool { return len(attached) == 0 || slices.Contains(attached, name) }
	for _, s := range p.cfg.Selections() {
		if !slices.ContainsFunc(s.Names, func(name string) bool { return !isAttached(name) }) {
			p.add(OK, s.Path, "%s: %s", s.By, strings.Join(s.Names, ", "))
		}
	}
	if len(attached) == 0 { // none is running, or it is still about to attach
		return
	}
	changed := false
	for _, i := range p.cfg.Attached() {
		next = append(next, i.Name)
		absent := slices.ContainsFunc(p.status.Absent, func(a api.AbsentInterface) bool { return a.Name == i.Name })
		changed = changed || !isAttached(i.Name) && !absent // which is a problem of its own
	}
	changed = changed || slices.ContainsFunc(attached, func(name string) bool { return !slices.Contains(next, name) })
	if changed {
		slices.Sort(next)
		p.add(Warning, "interfaces", "attached: %s; the next start attaches %s", strings.Join(attached, ", "), strings.Join(next, ", ")).
			mend("systemctl restart weir, or delete the pod; to keep these, give their names in interfaces")
	}
}

// attachedNames are the interfaces that the running Weir is attached to, sorted: bonds and
// VLAN interfaces in place of their ports.
func attachedNames(s *api.Status) (names []string) {
	for _, i := range s.Interfaces {
		if !i.HostVeth {
			names = append(names, cmp.Or(i.Interface, i.Name))
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// attached are the names of the interfaces that Weir is attached to, or would be.
func (p *patient) attached() (names []string) {
	if p.status != nil {
		return attachedNames(p.status)
	}
	for _, in := range p.cfg.Attached() {
		names = append(names, in.Name)
	}
	return names
}

// offloads looks for offloads that change packets before XDP sees them. Weir switches them
// off at the start; later another program may have switched them on.
func (p *patient) offloads() {
	for _, dev := range p.devices() {
		mode := steer.Native
		if dev.mode == "generic" {
			mode = steer.Generic
		}
		hook := steer.XDP
		if dev.hook == steer.TCX.String() {
			hook = steer.TCX
		}
		conflicts, err := steer.OffloadConflicts(dev.name, hook, mode)
		if err != nil {
			continue // a driver without settings
		}
		for _, c := range conflicts {
			f := p.add(OK, "interface "+dev.name, "offload %s is on: Weir switches it off at the start", c.Ethtool)
			if p.status != nil {
				f.Verdict = Fault
				f.Fact = fmt.Sprintf("offload %s is on: it %s", c.Ethtool, c.Why)
				f.mend("%s", c.Command(dev.name))
			}
		}
	}
}

// deviceState is a device that Weir is attached to, or would be.
type deviceState struct {
	name, mode, hook string
	queues, bound    int // 0: not known
}

// devices are those of the running Weir, else those of the configuration. A device is
// listed once, however many interfaces lie upon it.
func (p *patient) devices() (list []deviceState) {
	add := func(d deviceState) {
		if !slices.ContainsFunc(list, func(o deviceState) bool { return o.name == d.name }) {
			list = append(list, d)
		}
	}
	if p.status == nil {
		for _, i := range p.cfg.Attached() {
			d := deviceState{name: i.Name, mode: i.Mode, hook: i.Hook}
			if dev, err := net.InterfaceByName(i.Name); err == nil {
				if q, err := steer.RxQueues(dev.Index); err == nil {
					d.queues = q.Rx
				}
				add(d)
			}
		}
		return list
	}
	for _, i := range p.status.Interfaces {
		name := i.Device
		if name == "" {
			name = i.Name
		}
		if !i.HostVeth {
			add(deviceState{name, i.Mode, i.Hook, i.Queues, i.BoundQueues})
		}
	}
	return list
}

// queues compares the receive queues with the workers: packets of others go to the kernel.
func (p *patient) queues() {
	workers := p.workers()
	for _, d := range p.devices() {
		subject := "interface " + d.name
		served := min(d.queues, workers)
		if p.status != nil {
			served = d.bound
		}
		switch {
		case d.queues == 0:
		case served < d.queues:
			p.add(Warning, subject, "%d of %d receive queues have a worker: packets of the others go to the kernel", served, d.queues).
				mend("ethtool -L %s combined %d", d.name, max(served, 1))
		case d.queues < workers:
			p.add(OK, subject, "%d receive queues, %d workers: the others wait for other interfaces", d.queues, workers)
		default:
			p.add(OK, subject, "%d receive queues, each with a worker", d.queues)
		}
	}
}

// workers is the number of workers.
func (p *patient) workers() int {
	if p.status != nil {
		return len(p.status.Workers)
	}
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return 1
	}
	cpus := set.Count()
	if len(p.cfg.Workers.CPUs) > 0 {
		cpus = len(p.cfg.Workers.CPUs)
	}
	if n := int(p.cfg.Workers.Count); n > 0 {
		return n
	}
	return cpus
}

// hugePages reads the settings for huge pages: packet memory and flow table ask for them.
func (p *patient) hugePages() {
	const dir = "/sys/kernel/mm/transparent_hugepage/"
	data, err := os.ReadFile(dir + "enabled")
	switch {
	case errors.Is(err, os.ErrNotExist):
		p.add(Warning, "huge pages", "the kernel has none: packet memory and flow table are in small pages, which costs time per packet")
	case err != nil:
	case strings.Contains(string(data), "[never]"):
		p.add(Warning, "huge pages", "they are switched off: packet memory and flow table are in small pages, which costs time per packet").
			mend("echo madvise > %senabled", dir)
	default:
		p.shmemPages(dir)
	}
}

// shmemPages judges the setting for shared memory, in which packet memory is.
func (p *patient) shmemPages(dir string) {
	data, err := os.ReadFile(dir + "shmem_enabled")
	if err != nil || !strings.Contains(string(data), "[never]") && !strings.Contains(string(data), "[deny]") {
		p.add(OK, "huge pages", "packet memory and flow table may have them")
		return
	}
	p.add(OK, "huge pages", "the flow table may have them, packet memory not: echo advise > %sshmem_enabled before the start gives it some", dir)
}
