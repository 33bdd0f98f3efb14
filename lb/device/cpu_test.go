package device

import (
	"fmt"
	"slices"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
)

// machine makes sysfs of a machine: sockets with cores each, of which every one
// has so many threads. Linux numbers first threads through, socket by socket,
// then the second ones; interleaved machines number socket 0, 1, 0, 1.
func machine(sockets, cores, threads int, interleaved bool) (fstest.MapFS, []int) {
	sys := fstest.MapFS{}
	file := func(name, content string) { sys[name] = &fstest.MapFile{Data: []byte(content + "\n")} }
	nodes := make([]string, sockets)
	var ids []int
	for id := range sockets * cores * threads {
		first := id % (sockets * cores)
		socket, core := first/cores, first%cores
		if interleaved {
			socket, core = first%sockets, first/sockets
		}
		at := fmt.Sprintf("devices/system/cpu/cpu%d/topology/", id)
		file(at+"core_id", fmt.Sprint(core))
		file(at+"physical_package_id", fmt.Sprint(socket))
		nodes[socket] += fmt.Sprintf(",%d", id)
		ids = append(ids, id)
	}
	for n, list := range nodes {
		file(fmt.Sprintf("devices/system/node/node%d/cpulist", n), list[1:])
	}
	file("devices/system/node/online", "0-1")
	file("class/net/eth0/device/numa_node", "1")
	file("class/net/eth1/device/numa_node", "-1")
	return sys, ids
}

func TestWorkersArePlaced(t *testing.T) {
	for _, c := range []struct {
		name                    string
		sockets, cores, threads int
		interleaved             bool
		allowed                 []int // nil: all
		node, workers           int
		want                    []int
	}{
		{"one CPU", 1, 1, 1, false, nil, -1, 1, []int{0}},
		{"two CPUs, one worker: CPU 0 is left to the machine", 1, 2, 1, false, nil, -1, 1, []int{1}},
		{"two CPUs, two workers: worker i on CPU i", 1, 2, 1, false, nil, 0, 2, []int{0, 1}},
		{"eight cores", 1, 8, 1, false, nil, 0, 4, []int{1, 2, 3, 4}},
		{"all of eight cores", 1, 8, 1, false, nil, 0, 8, []int{0, 1, 2, 3, 4, 5, 6, 7}},
		{"SMT: no two on one core", 1, 4, 2, false, nil, 0, 3, []int{1, 2, 3}},
		{"SMT: CPU 0 before second threads", 1, 4, 2, false, nil, 0, 4, []int{0, 1, 2, 3}},
		{"SMT: second threads when cores are used up", 1, 4, 2, false, nil, 0, 6, []int{0, 1, 2, 3, 5, 6}},
		{"two sockets, device on the second", 2, 4, 1, false, nil, 1, 4, []int{4, 5, 6, 7}},
		{"two sockets, device on the first", 2, 4, 1, false, nil, 0, 3, []int{1, 2, 3}},
		{"two sockets, the near one with CPU 0 first", 2, 4, 1, false, nil, 0, 5, []int{0, 1, 2, 3, 4}},
		{"two sockets, interleaved numbers", 2, 4, 1, true, nil, 1, 4, []int{1, 3, 5, 7}},
		{"two sockets, SMT, device on the second", 2, 4, 2, false, nil, 1, 4, []int{4, 5, 6, 7}},
		{"two sockets, SMT: far cores before near second threads", 2, 4, 2, false, nil, 1, 6, []int{1, 2, 4, 5, 6, 7}},
		{"two sockets, SMT, all cores, then near threads", 2, 4, 2, false, nil, 1, 10, []int{0, 1, 2, 3, 4, 5, 6, 7, 12, 13}},
		{"a device that is near to nothing", 2, 4, 1, false, nil, -1, 4, []int{1, 2, 3, 4}},
		{"only some CPUs may be used", 2, 4, 2, false, []int{2, 3, 10, 11, 4}, 1, 3, []int{2, 3, 4}},
		{"more workers than CPUs", 1, 2, 1, false, nil, 0, 3, []int{0, 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			sys, ids := machine(c.sockets, c.cores, c.threads, c.interleaved)
			if c.allowed != nil {
				ids = c.allowed
			}
			if diff := cmp.Diff(c.want, Place(c.workers, CPUs(sys, ids), c.node)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestNodesOfDevices(t *testing.T) {
	sys, _ := machine(2, 2, 1, false)
	for name, want := range map[string]int{"eth0": 1, "eth1": -1, "veth0": -1} {
		if got := Node(sys, name); got != want {
			t.Errorf("%s is near node %d, want %d", name, got, want)
		}
	}
	for _, c := range []struct {
		queues map[int]int
		want   int
	}{
		{nil, -1}, {map[int]int{-1: 9}, -1}, {map[int]int{0: 4, 1: 8, -1: 64}, 1}, {map[int]int{0: 4, 1: 4}, 0},
	} {
		if got := NearestNode(c.queues); got != c.want {
			t.Errorf("%v: node %d, want %d", c.queues, got, c.want)
		}
	}
}

// Where sysfs says nothing every CPU is a core of its own, of one node.
func TestAMachineThatSaysNothing(t *testing.T) {
	if got := Place(2, CPUs(fstest.MapFS{}, []int{0, 1, 2}), -1); !slices.Equal(got, []int{1, 2}) {
		t.Errorf("placed on %v", got)
	}
}
