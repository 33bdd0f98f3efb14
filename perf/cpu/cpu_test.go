package cpu

import (
	"os"
	"testing"
	"time"
)

func TestCoreIsReadFromItsOwnLine(t *testing.T) {
	stat := []byte("cpu  9 9 9 9 9 9 9 9 0 0\ncpu1 1 2 3 4 5 6 7 8 0 0\ncpu11 90 90 90 90 90 90 90 90 0 0\nintr 5\n")
	c, err := parseCore(stat, 1)
	if err != nil {
		t.Fatal(err)
	}
	if want := (1 + 2 + 3 + 6 + 7) * 10 * time.Millisecond; c.Busy() != want || c.Steal != 80*time.Millisecond {
		t.Errorf("busy %v, steal %v; want %v", c.Busy(), c.Steal, want)
	}
	for _, bad := range []string{"", "cpu1 1 2 3\n", "cpu1 a 2 3 4 5 6 7 8\n"} {
		if _, err := parseCore([]byte(bad), 1); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}

func TestKernelThreadsAreToldByTheirFlags(t *testing.T) {
	rest := "S 2 0 0 0 -1 2129984 0 0 0 0 0 7 0 0 20 0 1 0 1 0 0 18446744073709551615 0 0 0 0 0 0 0 2147483647 0 0 0 0 17 1 99 1 0 0 0"
	if kthread, last := parseStat([]byte("14 (a) b) " + rest)); !kthread || last != 1 {
		t.Errorf("kernel thread %v on %d", kthread, last)
	}
	if kthread, last := parseStat([]byte("14 (x")); kthread || last != -1 {
		t.Error("half a line was taken")
	}
}

func TestTimeOfThreadsThatBeganLaterCounts(t *testing.T) {
	before := Threads{1: time.Second, 2: time.Second}
	after := Threads{1: 3 * time.Second, 3: time.Second}
	if got := after.Since(before); got != 3*time.Second {
		t.Errorf("%v", got)
	}
	if ran, err := parseSchedstat([]byte("1500 2 3\n")); err != nil || ran != 1500 {
		t.Errorf("%v, %v", ran, err)
	}
	if _, err := parseSchedstat(nil); err == nil {
		t.Error("an empty file was taken")
	}
}

// TestOwnTimeIsMeasured burns CPU time and looks for it in the account of its
// threads.
func TestOwnTimeIsMeasured(t *testing.T) {
	m, err := Start(0, os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	x := 0
	for began := time.Now(); time.Since(began) < 20*time.Millisecond; {
		x++
	}
	u, err := m.Stop()
	if err != nil || u.Own == 0 || u.Other < 0 || u.Wall < 20*time.Millisecond {
		t.Errorf("%+v, %v, %d rounds", u, err, x)
	}
}
