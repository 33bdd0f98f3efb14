package conntrack

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/conntrack/memory"
)

// A table in a file of a memory file system has huge pages from its first packet on,
// though the file system was mounted without.
func TestFreshFileHasHugePages(t *testing.T) {
	if os.Geteuid() != 0 {
		if os.Getenv("CI") == "true" {
			t.Fatal("needs root to mount a tmpfs")
		}
		t.Skip("needs root to mount a tmpfs")
	}
	if !canCollapse(t) {
		t.Skip("the kernel brings no pages into huge ones when asked to (Linux 6.1)")
	}
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=256m,huge=never"); err != nil {
		t.Skipf("mount a tmpfs: %v", err)
	}
	defer func() { _ = unix.Unmount(dir, unix.MNT_DETACH) }()
	path := filepath.Join(dir, "flows")
	tab, err := Open(Config{Path: path, MaxFlows: 100_000, Workers: 1, MaxEndpoints: 16})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tab.Close() }()
	size := len(tab.mem.shared)
	if huge := hugeBytes(t, path); huge < size/2 {
		t.Errorf("%d of %d bytes are in huge pages", huge, size)
	}
	if i := bytes.IndexFunc(tab.mem.shared[1<<20:], func(r rune) bool { return r != 0 }); i >= 0 {
		t.Errorf("byte %d of a fresh table is not 0", i+1<<20)
	}
}

// canCollapse says whether the kernel knows MADV_COLLAPSE, and has a huge page.
func canCollapse(t *testing.T) bool {
	t.Helper()
	m := &mapping{}
	b, err := m.Map(-1, memory.HugePage)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = m.close() }()
	b[0] = 1
	return unix.Madvise(b, unix.MADV_COLLAPSE) == nil
}

// hugeBytes is how much of the mappings of a file is in huge pages, as the kernel sees it.
func hugeBytes(t *testing.T, path string) int {
	t.Helper()
	maps, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		t.Fatal(err)
	}
	sum, ours := 0, false
	for line := range strings.Lines(string(maps)) {
		f := strings.Fields(line)
		switch {
		case !strings.HasSuffix(f[0], ":"):
			ours = f[len(f)-1] == path
		case ours && f[0] == "ShmemPmdMapped:":
			kb, err := strconv.Atoi(f[1])
			if err != nil {
				t.Fatal(err)
			}
			sum += kb << 10
		}
	}
	return sum
}

// A thread that is kept from running between the readings of the two clocks must not set the
// ticks of the kernel and of the process apart.
func TestClocksAreReadAtTheSameTime(t *testing.T) {
	const pause = 50 * time.Millisecond
	n := 0
	now, base, err := bothClocks(func() (int64, error) {
		if n++; n <= 2 {
			time.Sleep(pause)
		}
		return int64(n), nil
	})
	if err != nil || now < 3 {
		t.Errorf("reading %d, after a pause: %v", now, err)
	}
	if time.Since(base) < 0 || n < 3 {
		t.Errorf("%d readings, base in %v", n, time.Until(base))
	}
	if _, _, err := bothClocks(func() (int64, error) { return 0, os.ErrInvalid }); err != os.ErrInvalid {
		t.Errorf("error %v", err)
	}
}
