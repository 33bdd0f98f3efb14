package e2e

import (
	"context"
	"errors"
	"os"
	"strings"
	"syscall"
	"testing"
)

// Files that another user could have written are set aside at a start, which then serves. They
// are not changed. A directory of another user ends the start, with the command that mends it.
func TestWireFilesOfOthersAreNotTrusted(t *testing.T) {
	f := ownFixture(t, options{services: []service{toAttached}, extra: "flowCache: {mode: \"off\"}"})
	const stranger = 65534
	table, sysctls := f.path("conntrack"), f.path("sysctl.json")
	f.checkLoad(t, f.Client, toAttached.at(httpPort, false), 5)
	must(t, f.weir.Signal(syscall.SIGUSR2))
	f.ended(t)

	must(t, os.Rename(table, f.path("other")))
	must(t, os.Symlink(f.path("other"), table))
	before, err := os.ReadFile(f.path("other"))
	must(t, err)
	must(t, os.Chown(sysctls, stranger, -1))
	must(t, f.start())
	f.checkLoad(t, f.Client, toAttached.at(httpPort, false), 5)
	after, err := os.ReadFile(f.path("other"))
	must(t, err)
	if string(before) != string(after) {
		t.Error("the file behind the link has changed")
	}
	s, err := f.admin.Status(inTime(t, within))
	must(t, err)
	counted := map[string]uint64{}
	for _, file := range s.StateFiles {
		counted[file.Name] = file.NotUsed["untrusted"]
	}
	if counted["flow-table"] != 1 || counted["sysctls"] != 1 || counted["offloads"] != 0 {
		t.Errorf("counted %v", counted)
	}
	if !strings.Contains(strings.Join(s.Warnings, "\n"), table+" is not trusted: it is a symbolic link") {
		t.Errorf("warnings %q", s.Warnings)
	}
	for _, name := range []string{table, sysctls} {
		if _, err := os.Lstat(name + ".bad"); err != nil {
			t.Error(err)
		}
	}

	must(t, f.weir.Signal(syscall.SIGUSR2))
	f.ended(t)
	must(t, os.Chmod(f.Dir(), 0o777))
	must(t, f.launch("config.yaml"))
	err = f.poll(func(context.Context) error { return errors.New("it runs") })
	must(t, os.Chmod(f.Dir(), 0o700))
	if err == nil || !strings.Contains(err.Error(), "the process has ended") || !strings.Contains(f.logTail(), "chmod go-w "+f.Dir()) {
		t.Errorf("%v\n%s", err, f.logTail())
	}
	must(t, f.start()) // so that the connections end in order
}
