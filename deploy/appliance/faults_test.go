package appliance

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/weirlb/weir/deploy/appliance/bundle"
)

// content looks at the machine that serves: what it has beside Weir is there for a reason.
func content(t *testing.T, l *lab) {
	if out, err := l.command("touch /x").CombinedOutput(); err == nil || !strings.Contains(string(out), "Read-only file system") {
		t.Errorf("the root can be written: %s", out)
	}
	for _, test := range []struct{ what, command, want string }{
		{"ports of all addresses", // 9465 is Weir's healthzBindAddress
			"ss -Hlntu | awk '{print $1, $5}' | grep -v ' 127\\.' | sed 's/ .*:/ /' | sort -u", "tcp 22\ntcp 9465"},
		{"failed units", "systemctl --failed --no-legend --plain", ""},
		{"mounts of the boot partition", "grep -c -e vfat -e ' /boot ' /proc/mounts || true", "0"},
		{"programs with another user's rights", "find / -xdev -type f -perm /6000", ""},
		{"users with a password", "cut -d: -f2 /etc/shadow | grep -v '^[*!]' || true", ""},
		{"secrets that others can read", "find /etc/weir /var/lib/appliance/config/ -type f -perm /077; " +
			"find /run/systemd/network -type f -perm /007", ""},
		{"identity at DHCP servers", "systemd-analyze cat-config systemd/networkd.conf | grep -A1 '^\\[DHCP' | grep -c ^DUIDType=link-layer", "2"},
		{"logins by password", "sshd -T | grep -E '^(password|kbdinteractive|gssapi)authentication' | sort", "gssapiauthentication no\n" +
			"kbdinteractiveauthentication no\npasswordauthentication no"},
	} {
		out, err := l.command(test.command).CombinedOutput()
		if got := strings.TrimSpace(string(out)); err != nil || got != test.want {
			t.Errorf("%s: %q, %v, want %q", test.what, got, err, test.want)
		}
	}
	packages, err := l.command("wc -l < /usr/lib/weir-appliance/packages").CombinedOutput()
	t.Logf("%s packages of Debian (%v)", bytes.TrimSpace(packages), err)
}

// pulledDrive takes the drive out: all that is needed was copied.
func pulledDrive(t *testing.T, l *lab) {
	l.pull(t)
	must(t, l.stands("Weir serves"))
	l.serves(t)
}

// noUpdate offers files that must leave the slots as they are.
func noUpdate(t *testing.T, l *lab) {
	var other bytes.Buffer
	dir := t.TempDir()
	for _, name := range bundle.Files {
		run(t, "cp", l.at("key"), dir+"/"+name)
	}
	must(t, bundle.Write(&other, &bundle.Manifest{Version: "5.0.0", Architecture: "arm64"}, dir))
	large, end := largeUpdate(t)
	defer end()
	mark := l.appliance.mark()
	for _, test := range []struct {
		file io.Reader
		want string
	}{
		{strings.NewReader(strings.Repeat("no tar ", 1000)), "not a bundle"},
		{strings.NewReader(""), "not a bundle"},
		{&other, "the release is for arm64, this machine is amd64"},
		{large, "do not fit: the boot partition has"},
	} {
		cmd := l.command("appliance", "update")
		cmd.Stdin = test.file
		if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), test.want) {
			t.Errorf("%v, want %q: %s", err, test.want, out)
		}
	}
	must(t, l.stands(l.slot+"\n"))
	l.serves(t)
	l.appliance.mu.Lock()
	defer l.appliance.mu.Unlock()
	if slices.ContainsFunc(l.appliance.lines[mark:], func(line string) bool { return strings.Contains(line, "reboot") }) {
		t.Error("the machine has rebooted")
	}
}

// largeUpdate is an update whose kernel does not fit the boot partition. It is not read to its end.
func largeUpdate(t *testing.T) (r io.Reader, end func()) {
	t.Helper()
	dir := t.TempDir()
	for _, name := range bundle.Files {
		must(t, os.WriteFile(filepath.Join(dir, name), []byte(name), 0o600))
	}
	must(t, os.Truncate(filepath.Join(dir, bundle.Kernel), 1<<30))
	out, in := io.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		in.CloseWithError(bundle.Write(in, &bundle.Manifest{Version: "5.0.0", Architecture: "amd64"}, dir))
	}()
	return out, func() { out.Close(); <-done }
}

// mistake boots with a weir.yaml that Weir refuses: the configuration that served counts. The
// machine has lost its clock, too.
func mistake(t *testing.T, l *lab) {
	must(t, l.answers("test -e /var/lib/appliance/served"))
	good := l.drive
	l.drive, l.clock = l.newDrive(t, "mistake", []string{"name: " + nic, "nam: " + nic}), "1999-01-01T00:00:00"
	l.restart(t, "configuration of an earlier boot: the drive WEIR-CONFIG cannot be used: weir.yaml:5: interfaces[0].nam: unknown field",
		"Weir serves")
	l.reachable(t)
	l.drive, l.clock = good, ""
}

// uselessDrive boots with a configuration that is valid, but of another machine.
func uselessDrive(t *testing.T, l *lab) {
	good := l.drive
	l.drive = l.newDrive(t, "useless", []string{nic, "enp0s99"})
	l.power(t)
	l.appliance.says(t, 0, "host edge-1, configuration of the drive", "Weir does not serve with this configuration, the earlier one is next, reboot",
		"configuration of an earlier boot: the drive WEIR-CONFIG cannot be used: with it Weir did not serve", "Weir serves")
	l.serves(t)
	l.drive = good
}

// fullState boots with another drive, and no room for it.
func fullState(t *testing.T, l *lab) {
	l.reachable(t)
	good := l.drive
	l.drive = l.newDrive(t, "other", []string{"65536", "32768"})
	_ = l.answers("cat /dev/zero > /var/full; sync") // until there is no room
	l.restart(t, "configuration of an earlier boot: the drive WEIR-CONFIG cannot be used", "no space left on device", "Weir serves")
	l.reachable(t)
	must(t, l.answers("rm /var/full"))
	l.drive = good
}

// damagedState loses the beginning of the state partition, which its copies replace. No drive
// is attached.
func damagedState(t *testing.T, l *lab) {
	l.drive = ""
	l.appliance.cut()
	l.wipe(t, "weir-state", 64<<10)
	l.startAppliance(t)
	l.appliance.says(t, 0, "configuration of an earlier boot", "Weir serves")
	l.serves(t)
}

// readOnlyDisk boots from a disk that can no longer be written, as flash is when it is worn out.
// No drive is attached.
func readOnlyDisk(t *testing.T, l *lab) {
	l.drive, l.worn = "", true
	l.restart(t, "configuration of an earlier boot", "the state is in memory", "Weir serves")
	l.reachable(t)
	if out, err := l.command("appliance", "update").CombinedOutput(); err == nil || strings.Contains(string(out), "not a bundle") {
		t.Errorf("an update is read, for a disk that cannot be written: %s", out)
	}
	must(t, l.answers("systemctl --failed --no-legend --plain | grep . && exit 1 || true"))
	l.worn = false
}

// A state partition that cannot be mended does not end the service: the drive has the
// configuration. Without one the console asks for it.
func lostState(t *testing.T, l *lab) {
	l.appliance.cut()
	l.wipe(t, "weir-state", 1<<40)
	l.startAppliance(t)
	l.appliance.says(t, 0, "configuration of none: attach a drive labelled WEIR-CONFIG and reboot", "the state is in memory")
	l.drive = l.at("drive")
	l.restart(t, "the state is in memory", "Weir serves")
	l.reachable(t)
}
