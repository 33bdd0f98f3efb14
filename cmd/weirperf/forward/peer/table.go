package peer

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
)

// TableBytes is the detail that has the memory of the flow table, by connection of its limit.
const TableBytes = "bytes of the flow table per connection"

// tableBytes is the size of the flow table and its index: of the kernel's maps that have them,
// else as Weir reports it.
func (w *weir) tableBytes(reported uint64) (sum float64, err error) {
	maps, err := mapsOf(w.process.Cmd.Process.Pid)
	for _, n := range maps {
		sum += n
	}
	if sum == 0 {
		sum = float64(reported)
	}
	return sum, err
}

// mapsOf returns the memory of a process's BPF maps of the flow table, by identifier.
func mapsOf(pid int) (map[ebpf.MapID]float64, error) {
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/fdinfo/*", pid))
	if err != nil {
		return nil, err
	}
	found := map[ebpf.MapID]float64{}
	for _, path := range files {
		b, err := os.ReadFile(path)
		if err != nil {
			continue // closed meanwhile
		}
		_, line, is := strings.Cut(string(b), "map_id:")
		if !is {
			continue
		}
		var id ebpf.MapID
		if _, err := fmt.Sscan(line, &id); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		n, err := flowMapBytes(id)
		if err != nil {
			return nil, err
		}
		found[id] = n
	}
	return found, nil
}

// flowMapBytes is the memory of a map of the flow table or its index, else 0.
func flowMapBytes(id ebpf.MapID) (float64, error) {
	m, err := ebpf.NewMapFromID(id)
	if err != nil {
		return 0, err
	}
	defer m.Close()
	info, err := m.Info()
	if err != nil || !slices.Contains([]string{"flow_table", "flow_index"}, info.Name) {
		return 0, err
	}
	n, _ := info.Memlock()
	return float64(n), nil
}
