package conntrack

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/weirlb/weir/conntrack/memory"
)

func TestAutomaticSizeHeedsTheControlGroup(t *testing.T) {
	const meminfo = "MemTotal:       16777216 kB\nMemFree: 1 kB\nMemAvailable:    8388608 kB\n"
	for name, c := range map[string]struct {
		files map[string]string
		total int64
	}{
		"no control group": {map[string]string{}, 16 << 30},
		"v2, own limit": {map[string]string{
			"proc/self/cgroup": "0::/kube/pod\n", "sys/fs/cgroup/kube/pod/memory.max": "1073741824\n"}, 1 << 30},
		"v2, a parent's limit": {map[string]string{
			"proc/self/cgroup": "0::/kube/pod\n", "sys/fs/cgroup/kube/pod/memory.max": "max\n",
			"sys/fs/cgroup/kube/memory.max": "2147483648\n"}, 2 << 30},
		"v2, in a namespace": {map[string]string{
			"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "4294967296\n"}, 4 << 30},
		"v2, a limit beyond the machine": {map[string]string{
			"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/memory.max": "99999999999999\n"}, 16 << 30},
		"v1": {map[string]string{
			"proc/self/cgroup": "4:cpu,memory:/box\n1:name=systemd:/x\n",
			"sys/fs/cgroup/memory/box/memory.limit_in_bytes": "536870912\n"}, 512 << 20},
		"rubbish": {map[string]string{"proc/self/cgroup": "what\n0::", "sys/fs/cgroup/memory.max": "-7"}, 16 << 30},
	} {
		t.Run(name, func(t *testing.T) {
			m := memory.Machine{Root: t.TempDir()}
			c.files["proc/meminfo"] = meminfo
			for f, text := range c.files {
				f = filepath.Join(m.Root, f)
				if err := os.MkdirAll(filepath.Dir(f), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(f, []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			total, err := m.Total()
			if err != nil || total != c.total {
				t.Fatalf("total %d, %v; want %d", total, err, c.total)
			}
			if avail, err := m.Available(); err != nil || avail != min(total, 8<<30) {
				t.Errorf("available %d, %v", avail, err)
			}
			flows, err := autoFlows(m, 1000, 0)
			if err != nil {
				t.Fatal(err)
			}
			p := planFor(flows)
			if size := p.size + p.index() + flows*linkSize + 4*1000; size > total/autoShare || size < total/autoShare*4/5 {
				t.Errorf("%d flows take %d bytes, 5 %% are %d", flows, size, total/autoShare)
			}
		})
	}
	if _, err := (memory.Machine{Root: t.TempDir()}).Total(); err == nil {
		t.Error("memory without /proc/meminfo")
	}
}
