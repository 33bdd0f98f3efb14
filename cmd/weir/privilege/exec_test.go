package privilege

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// executed is set for a process that gives its privileges up ("drop") and executes itself
// again, where it reports those it has ("report").
const executed = "PRIVILEGE_TEST_EXECUTE"

func execute(step string) {
	if step == "report" {
		have, err := effective()
		fmt.Println(describe(have), err)
		os.Exit(0)
	}
	if _, err := Drop(nil); err != nil {
		fmt.Println(err)
	}
	if err := KeepThroughExec(); err != nil {
		fmt.Println(err)
	}
	fmt.Println(unix.Exec("/proc/self/exe", os.Args, []string{executed + "=report"}))
	os.Exit(1)
}

// A process of a user that is not root has its capabilities after it executes itself again.
func TestCapabilitiesAreThereAfterExec(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to start a process of another user with capabilities")
	}
	for name, attr := range map[string]*syscall.SysProcAttr{
		"root": {},
		"user": {
			Credential:  &syscall.Credential{Uid: 65534, Gid: 65534},
			AmbientCaps: []uintptr{unix.CAP_NET_ADMIN, unix.CAP_NET_RAW, unix.CAP_BPF, unix.CAP_PERFMON, unix.CAP_IPC_LOCK},
		},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := exec.Command("/proc/self/exe") // the directory is the tester's alone
			cmd.Env, cmd.SysProcAttr = []string{executed + "=drop"}, attr
			out, err := cmd.CombinedOutput()
			want := "[CAP_BPF CAP_IPC_LOCK CAP_NET_ADMIN CAP_NET_RAW CAP_PERFMON] <nil>"
			if said := strings.TrimSpace(string(out)); err != nil || said != want {
				t.Errorf("%v, %s, want %s", err, said, want)
			}
		})
	}
}
