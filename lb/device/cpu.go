package device

import (
	"cmp"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"
)

// CPU is a hardware thread of a core, which the kernel schedules on.
type CPU struct {
	ID   int
	Node int // of the CPU's memory
	Core int // number of the core, the same for hardware threads of a core
}

// CPUs describes the CPUs of ids as sysfs (mounted at sys) does. Missing properties default
// to the simplest: node 0, a separate core.
func CPUs(sys fs.FS, ids []int) []CPU {
	node := nodesOf(sys)
	cores := map[string]int{}
	cpus := make([]CPU, 0, len(ids))
	for _, id := range ids {
		c := CPU{ID: id, Node: node[id], Core: id}
		at := fmt.Sprintf("devices/system/cpu/cpu%d/topology/", id)
		core, pkg := readString(sys, at+"core_id"), readString(sys, at+"physical_package_id")
		if core != "" {
			// Core numbers count from 0 in each package.
			key := pkg + "/" + core
			if first, ok := cores[key]; ok {
				c.Core = first
			} else {
				cores[key] = id
			}
		}
		cpus = append(cpus, c)
	}
	return cpus
}

// nodesOf maps CPUs to memory nodes.
func nodesOf(sys fs.FS) map[int]int {
	nodes := map[int]int{}
	entries, err := fs.ReadDir(sys, "devices/system/node")
	if err != nil {
		return nodes
	}
	for _, e := range entries {
		n, err := strconv.Atoi(strings.TrimPrefix(e.Name(), "node"))
		if err != nil || !strings.HasPrefix(e.Name(), "node") {
			continue
		}
		for _, id := range parseList(readString(sys, "devices/system/node/"+e.Name()+"/cpulist")) {
			nodes[id] = n
		}
	}
	return nodes
}

// Online are the CPUs that run, whatever this process may use; none where sysfs does not say.
func Online(sys fs.FS) []int { return parseList(readString(sys, "devices/system/cpu/online")) }

// Node is the memory node that a network device is nearest to, -1 where sysfs does not say:
// virtual devices, machines with a single node.
func Node(sys fs.FS, name string) int {
	n, err := strconv.Atoi(readString(sys, "class/net/"+name+"/device/numa_node"))
	if err != nil {
		return -1
	}
	return n
}

func readString(sys fs.FS, name string) string {
	b, err := fs.ReadFile(sys, name)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// parseList reads a list such as 0-3,8 (Documentation/admin-guide/cputopology.rst).
func parseList(s string) (ids []int) {
	for part := range strings.SplitSeq(s, ",") {
		from, to, ok := strings.Cut(part, "-")
		if !ok {
			to = from
		}
		lo, err1 := strconv.Atoi(from)
		hi, err2 := strconv.Atoi(to)
		if err1 != nil || err2 != nil || hi-lo > 1<<16 {
			continue
		}
		for id := lo; id <= hi; id++ {
			ids = append(ids, id)
		}
	}
	return ids
}

// Place chooses CPUs for n workers, in worker order; fewer where there are not
// as many. node is the memory node that most queues are nearest to, -1 for none.
//
// A worker polls and so takes a core: cores are used once each, near ones
// first, before second hardware threads are; two workers on the same core are each slower
// than a worker on a core of the other node. The core of CPU 0, to which most
// machines leave their own interrupts, is the last of its class. The chosen CPUs
// are given out in ascending order: with all of them worker i is on CPU i.
func Place(n int, cpus []CPU, node int) []int {
	type ranked struct {
		CPU
		rank int
	}
	byID := slices.SortedFunc(slices.Values(cpus), func(a, b CPU) int { return a.ID - b.ID })
	zero := -1
	for _, c := range byID {
		if c.ID == 0 {
			zero = c.Core
		}
	}
	threads := map[int]int{} // of a core, seen so far
	order := make([]ranked, 0, len(byID))
	for _, c := range byID {
		r := ranked{CPU: c, rank: 4 * threads[c.Core]}
		threads[c.Core]++
		if node >= 0 && c.Node != node {
			r.rank += 2
		}
		if c.Core == zero {
			r.rank++
		}
		order = append(order, r)
	}
	slices.SortStableFunc(order, func(a, b ranked) int { return cmp.Compare(a.rank, b.rank) })
	chosen := make([]int, 0, n)
	for _, r := range order[:min(n, len(order))] {
		chosen = append(chosen, r.ID)
	}
	slices.Sort(chosen)
	return chosen
}

// NearestNode is the node that most of the queues are nearest to: queues is how
// many there are by node. -1 where none says.
func NearestNode(queues map[int]int) int {
	best := -1
	for node, n := range queues {
		if node >= 0 && (best < 0 || n > queues[best] || n == queues[best] && node < best) {
			best = node
		}
	}
	return best
}
