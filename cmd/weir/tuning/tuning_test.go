package tuning

import (
	"os"
	"runtime"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

// threads returns how many threads of this process may run on a CPU.
func threads(t *testing.T, cpu int) (on, all int) {
	t.Helper()
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	for _, task := range tasks {
		tid, _ := strconv.Atoi(task.Name())
		var set unix.CPUSet
		if unix.SchedGetaffinity(tid, &set) != nil {
			continue // ended
		}
		all++
		if set.IsSet(cpu) {
			on++
		}
	}
	return on, all
}

func TestControlPlaneLeavesTheWorkersCPUs(t *testing.T) {
	cpu := LastCPU()
	if cpu < 0 {
		t.Skip("skipped: there is one CPU only")
	}
	before := runtime.GOMAXPROCS(0)
	undo := Apply(func(err error) { t.Error(err) }, 1, []int{cpu})
	if on, all := threads(t, cpu); on != 0 || all == 0 {
		t.Errorf("%d of %d threads may use the worker's CPU", on, all)
	}
	// A thread that is made now stays away too: those that sleep do not.
	stop, ready := make(chan bool), make(chan bool)
	for range 8 {
		go func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			ready <- true
			<-stop
		}()
	}
	for range 8 {
		<-ready
	}
	if on, _ := threads(t, cpu); on != 0 {
		t.Errorf("%d new threads may use the worker's CPU", on)
	}
	close(stop)
	undo.All()
	if on, all := threads(t, cpu); on != all {
		t.Errorf("afterwards %d of %d threads may use the CPU", on, all)
	}
	if got := runtime.GOMAXPROCS(0); got != before {
		t.Errorf("GOMAXPROCS is %d, was %d", got, before)
	}
}

// Where the workers have every CPU, the rest has to share.
func TestControlPlaneStaysWhereThereIsNoOtherCPU(t *testing.T) {
	all, err := allowed()
	if err != nil {
		t.Fatal(err)
	}
	var cpus []int
	for n := range 1 << 10 {
		if all.IsSet(n) {
			cpus = append(cpus, n)
		}
	}
	defer Apply(func(err error) { t.Error(err) }, len(cpus), cpus).All()
	if on, n := threads(t, cpus[0]); on != n {
		t.Errorf("%d of %d threads may use the first CPU", on, n)
	}
}
