package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"weir":      func() { os.Exit(run(context.Background(), os.Args[1:], os.Stdout, os.Stderr)) },
		"powerless": powerless,
	})
}

// powerless runs a command without any capability, whoever the user is: what
// is not in the bounding set is not granted by exec (capabilities(7)).
func powerless() {
	runtime.LockOSThread()
	for c := uintptr(0); c <= unix.CAP_LAST_CAP; c++ {
		_ = unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0) // EPERM: there is none to drop
	}
	name, err := exec.LookPath(os.Args[1])
	if err == nil {
		err = unix.Exec(name, os.Args[1:], os.Environ())
	}
	fmt.Fprintln(os.Stderr, "powerless:", err)
	os.Exit(125)
}

func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"status": cmdStatus,
		},
	})
}

// cmdStatus is `status N COMMAND...`: the command exits with N. Its output is
// there for stdout and stderr.
func cmdStatus(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: status N COMMAND...")
	}
	err := ts.Exec(args[1], args[2:]...)
	got := "0"
	if err != nil {
		got = err.Error()[len("exit status "):]
	}
	if got != args[0] {
		ts.Fatalf("exit status %s, want %s", got, args[0])
	}
}
