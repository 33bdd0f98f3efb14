package e2e

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// Members of admin.group look at the running Weir, and no more. Others get an error that names
// their number and the remedy.
func TestWireAdminSocketAsksWhoAsks(t *testing.T) {
	t.Parallel()
	const stranger, operator = 65534, 4711
	f := ownFixture(t, options{services: []service{toAttached}, stopped: true})
	config := strings.Replace(f.config(), "weir.sock}", "weir.sock, group: \"4711\"}", 1)
	must(t, os.WriteFile(f.path("config.yaml"), []byte(config), 0o644))
	must(t, f.start())
	must(t, os.Chmod(f.Dir(), 0o711))
	binary, err := os.ReadFile(f.binary)
	must(t, err)
	must(t, os.WriteFile(f.path("weir"), binary, 0o755))
	as := func(groups []uint32, args ...string) string {
		cmd := exec.Command(f.path("weir"), append(args, "--admin-socket", f.path("weir.sock"))...)
		cmd.Dir = "/"
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: stranger, Gid: stranger, Groups: groups}}
		out, err := cmd.CombinedOutput()
		if err != nil {
			return "failed: " + string(out)
		}
		return string(out)
	}
	for _, c := range []struct {
		groups []uint32
		args   []string
		want   string
	}{
		{[]uint32{operator}, []string{"status"}, "State       serving"},
		{[]uint32{operator}, []string{"connections"}, ""},
		{[]uint32{operator}, []string{"stop"}, "failed: weir: uid 65534 may only read: run the command as root, or set admin.groupAccess: full for group 4711"},
		{[]uint32{operator}, []string{"capture", "-w", "-", "--packets", "1"}, "uid 65534 may only read"},
		{nil, []string{"status"}, "permission denied for uid 65534: run the command as root, or as a member of admin.group"},
	} {
		out := as(c.groups, c.args...)
		if !strings.Contains(out, c.want) || strings.Contains(out, "failed") != (strings.Contains(c.want, "uid")) {
			t.Errorf("groups %v, weir %v: %s\nwant %s", c.groups, c.args, out, c.want)
		}
	}
	f.checkLoad(t, f.Client, toAttached.at(httpPort, false), 5) // it runs
	must(t, f.weir.Stop(within))
}
