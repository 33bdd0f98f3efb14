package doctor

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/weirlb/weir/cmd/weir/config"
)

// interrupts compares the CPUs that serve the interrupts of NICs with those of workers.
func (p *patient) interrupts() {
	workers := map[int]bool{}
	if p.status != nil {
		for _, w := range p.status.Workers {
			workers[w.CPU] = true
		}
	}
	delete(workers, -1) // not pinned
	for _, d := range p.devices() {
		if irqs := interruptsOf("", d.name); len(irqs) > 0 {
			p.judgeInterrupts(d.name, irqs, slices.Sorted(maps.Keys(workers)))
		}
	}
}

// interrupt is an interrupt of a receive queue.
type interrupt struct {
	number int
	cpus   config.CPUs // that may get it
}

// judgeInterrupts wants the interrupts of several queues on several CPUs, those of the
// workers.
func (p *patient) judgeInterrupts(name string, irqs []interrupt, workers []int) {
	used := map[int]bool{}
	for _, i := range irqs {
		for _, c := range i.cpus {
			used[c] = true
		}
	}
	spread := slices.Sorted(maps.Keys(used))
	subject := "interrupts of " + name
	if len(irqs) > 1 && len(spread) == 1 && (len(workers) > 1 || p.status == nil && p.workers() > 1) {
		var commands []string
		for i, irq := range irqs {
			if len(workers) == 0 {
				break
			}
			commands = append(commands, fmt.Sprintf("echo %d > /proc/irq/%d/smp_affinity_list", workers[i%len(workers)], irq.number))
		}
		p.add(Warning, subject, "CPU %d gets those of all %d queues, and limits all workers", spread[0], len(irqs)).
			mend("%s", cmp.Or(strings.Join(commands, "; "), "systemctl start irqbalance"))
		return
	}
	p.add(OK, subject, "%d queues, on CPUs %v; workers on CPUs %v", len(irqs), spread, workers)
}

// interruptsOf are the interrupts of an interface's receive queues, by number. Those of
// virtio belong to the parent of the device. root has /proc and /sys.
func interruptsOf(root, name string) (list []interrupt) {
	for _, dir := range []string{"/device/msi_irqs", "/device/../msi_irqs"} {
		entries, err := os.ReadDir(root + "/sys/class/net/" + name + dir)
		if err != nil {
			continue
		}
		for _, e := range entries {
			if n, err := strconv.Atoi(e.Name()); err == nil && ofReceiveQueue(root, n, name) {
				list = append(list, interrupt{n, affinity(root, n)})
			}
		}
	}
	slices.SortFunc(list, func(a, b interrupt) int { return a.number - b.number })
	return list
}

// ofReceiveQueue tells by the name of the handler: eth0-TxRx-3, virtio0-input.0, mlx5_comp3.
func ofReceiveQueue(root string, n int, iface string) bool {
	handlers, err := os.ReadDir(fmt.Sprintf("%s/proc/irq/%d", root, n))
	if err != nil {
		return false
	}
	for _, h := range handlers {
		name := strings.ToLower(h.Name())
		if !h.IsDir() || strings.Contains(name, "output") || strings.Contains(name, "-tx-") {
			continue
		}
		if strings.Contains(name, "rx") || strings.Contains(name, "input") || strings.Contains(name, "comp") ||
			strings.HasPrefix(name, strings.ToLower(iface)+"-") {
			return true
		}
	}
	return false
}

// affinity are the CPUs that get an interrupt.
func affinity(root string, n int) config.CPUs {
	for _, file := range []string{"effective_affinity_list", "smp_affinity_list"} {
		data, err := os.ReadFile(fmt.Sprintf("%s/proc/irq/%d/%s", root, n, file))
		var cpus config.CPUs
		if err == nil && cpus.Set(strings.TrimSpace(string(data))) == nil && len(cpus) > 0 {
			return cpus
		}
	}
	return nil
}
