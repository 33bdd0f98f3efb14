package privilege

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// confined is set for the process that gives its privileges up: the directory to write to.
const confined = "PRIVILEGE_TEST_WRITABLE"

func TestMain(m *testing.M) {
	if dir := os.Getenv(confined); dir != "" {
		confine(dir)
	}
	if step := os.Getenv(executed); step != "" {
		execute(step)
	}
	os.Exit(m.Run())
}

// outcome is what the confined process found.
type outcome struct {
	Status  *Status
	Err     string
	Threads []string // status of each thread
	Inside  bool     // a file can be made in the directory
	Outside string   // the error of making another elsewhere
	Call    string   // the error of a denied system call
}

func confine(dir string) {
	for range 4 { // threads that live
		go func() { select {} }()
	}
	var o outcome
	var err error
	if o.Status, err = Drop([]string{dir}); err != nil {
		o.Err = err.Error()
	}
	tasks, _ := os.ReadDir("/proc/self/task")
	for _, t := range tasks {
		b, _ := os.ReadFile(filepath.Join("/proc/self/task", t.Name(), "status"))
		o.Threads = append(o.Threads, string(b))
	}
	o.Inside = os.WriteFile(filepath.Join(dir, "file"), nil, 0o600) == nil
	o.Outside = fmt.Sprint(os.WriteFile(filepath.Join(filepath.Dir(dir), "elsewhere"), nil, 0o600))
	o.Call = fmt.Sprint(unix.Unshare(unix.CLONE_NEWNS))
	_ = json.NewEncoder(os.Stdout).Encode(&o)
	os.Exit(0)
}

// After Drop every thread has the capabilities in use and no way to others, a denied system
// call fails, and files can be made in the given directory alone.
func TestAConfinedProcessHasWhatItNeeds(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "writable")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), confined+"="+dir)
	out, err := cmd.Output()
	var o outcome
	if err := errors.Join(err, json.Unmarshal(out, &o)); err != nil || o.Err != "" {
		t.Fatalf("%v, %s, %s", err, o.Err, out)
	}
	keep := used(^uint64(0))
	for _, status := range o.Threads {
		for _, want := range []string{"NoNewPrivs:\t1", "CapInh:\t0000000000000000", "CapAmb:\t0000000000000000"} {
			if !strings.Contains(status, want+"\n") {
				t.Errorf("a thread is not as %q:\n%s", want, status)
			}
		}
		for _, set := range []string{"CapPrm", "CapEff", "CapBnd"} {
			if os.Geteuid() == 0 && !strings.Contains(status, fmt.Sprintf("%s:\t%016x\n", set, keep)) {
				t.Errorf("a thread has another %s than %016x:\n%s", set, keep, status)
			}
		}
	}
	if o.Status.Seccomp == "" && o.Call != unix.EPERM.Error() {
		t.Errorf("unshare: %s", o.Call)
	}
	if !o.Inside {
		t.Error("the directory cannot be written to")
	}
	if o.Status.Landlock == "" && !strings.Contains(o.Outside, "permission denied") {
		t.Errorf("another directory: %s", o.Outside)
	}
	t.Logf("%+v", o.Status)
}

func TestUsedCapabilities(t *testing.T) {
	all := []string{"CAP_BPF", "CAP_IPC_LOCK", "CAP_NET_ADMIN", "CAP_NET_RAW", "CAP_PERFMON"}
	if got := describe(used(^uint64(0))); !slices.Equal(got, all) {
		t.Errorf("of all: %q", got)
	}
	old := ^uint64(1<<unix.CAP_BPF | 1<<unix.CAP_PERFMON)
	if got := describe(used(old)); !slices.Equal(got, []string{"CAP_IPC_LOCK", "CAP_NET_ADMIN", "CAP_NET_RAW", "CAP_SYS_ADMIN"}) {
		t.Errorf("before Linux 5.8: %q", got)
	}
	if got := used(0); got != 0 {
		t.Errorf("of none: %x", got)
	}
}
