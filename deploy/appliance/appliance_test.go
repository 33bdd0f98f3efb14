package appliance

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weirlb/weir/deploy/appliance/bundle"
	"github.com/weirlb/weir/perf/netlab/patience"
)

// An appliance serves the manifests of its drive, and goes on to serve whatever happens to the
// drive, the state partition, the clock, and the power during an update. It takes a whole
// update, and gives up those that do not come up. The steps share the machines: a boot takes
// most of the time.
func TestVMAppliance(t *testing.T) {
	l := newLab(t)
	l.startClient(t)
	began := time.Now()
	l.startAppliance(t)
	l.serves(t)
	t.Logf("%.0f s from power on to an answer", time.Since(began).Seconds())
	l.appliance.says(t, 0, "slot a", "host edge-1, configuration of the drive", "Weir serves")
	l.reachable(t)
	chain, _ := l.command("systemd-analyze; systemd-analyze critical-chain --no-pager; systemd-analyze blame --no-pager | head -20").CombinedOutput()
	t.Logf("%s", chain)

	for _, step := range []struct {
		name string
		run  func(*testing.T, *lab)
	}{
		{"its content", content},
		{"a drive that is pulled", pulledDrive},
		{"files that are no update", noUpdate},
		{"a drive with a mistake, and a wrong clock", mistake},
		{"a drive with which Weir does not serve", uselessDrive},
		{"a full state partition", fullState},
		{"a power cut during an update", powerCut},
		{"an update with power cuts", goodUpdate},
		{"an update without Weir", withoutWeir},
		{"an update without a root", withoutRoot},
		{"a damaged state partition", damagedState},
		{"a disk that cannot be written", readOnlyDisk},
		{"a lost state partition", lostState},
	} {
		if !t.Run(step.name, func(t *testing.T) { step.run(t, l) }) {
			return // the state of the disk is not that of the next step
		}
	}
}

// A cut in the middle of an update leaves the slot that ran.
func powerCut(t *testing.T, l *lab) {
	l.reachable(t)
	update := read(t, filepath.Join(l.image, "weir-appliance.tar"))
	cmd := l.command("appliance", "update")
	in, err := cmd.StdinPipe()
	must(t, err)
	cmd.Stderr = os.Stderr
	must(t, cmd.Start())
	_, err = io.Copy(in, bytes.NewReader(update[:len(update)*3/4]))
	must(t, err)
	l.appliance.cut()
	_ = cmd.Wait()
	l.restart(t, l.slot, "Weir serves")
}

// An update is booted on trial and confirmed, so that it stays. Power cuts after the entry has
// been written, and in the first boot, cost a boot of the trial. Nobody attaches the drive.
func goodUpdate(t *testing.T, l *lab) {
	l.drive = ""
	l.appliance.cut()
	c := newCrashes(t, l)
	c.record()
	l.restart(t, l.slot, "configuration of an earlier boot", "Weir serves")
	file := l.variant(t, "2.0.0", fmt.Sprintf(" weir.readySeconds=%.0f", patience.For(within).Seconds()), nil)
	l.update(t, file, "--stay")
	c.record()
	l.power(t)
	l.appliance.says(t, 0, "slot b on trial, 2 boots left")
	c.record()
	l.restart(t, "slot b on trial, 1 boots left", "Weir serves")
	l.slot = "slot b"
	eventually(t, func() error { return l.stands(l.slot + "\n") })
	c.end()
	// Nothing was written since: a cut finds the confirmation on the disk.
	l.restart(t, l.slot, "Weir serves")
	c.check(file)
}

// The release that does not serve is given up after its trial, for the confirmed one.
func withoutWeir(t *testing.T, l *lab) {
	mark := l.appliance.mark()
	l.update(t, l.variant(t, "3.0.0", " systemd.mask=weir.service weir.readySeconds=5", nil))
	l.appliance.says(t, mark, "release 3.0.0 does not serve, reboot", "release 3.0.0 does not serve, reboot",
		"release 3.0.0 does not serve, reboot", l.slot, "Weir serves")
	l.serves(t)
}

// So is a release that does not come as far as its own program, right after another.
func withoutRoot(t *testing.T, l *lab) {
	mark := l.appliance.mark()
	l.update(t, l.variant(t, "4.0.0", "", bytes.Repeat([]byte("no root "), 1<<17)))
	const reboots = "Rebooting automatically" // of the initramfs, by panic= of the kernel's options
	l.appliance.says(t, mark, reboots, reboots, reboots, l.slot, "Weir serves")
	l.serves(t)
}

// restart cuts the power and switches the machine on again. It must serve, and its console say
// texts.
func (l *lab) restart(t *testing.T, texts ...string) {
	t.Helper()
	l.power(t)
	l.appliance.says(t, 0, texts...)
	l.serves(t)
}

// power cuts the power and switches the machine on again.
func (l *lab) power(t *testing.T) {
	t.Helper()
	l.appliance.cut()
	l.startAppliance(t)
}

// update installs a bundle, and boots it, without --stay.
func (l *lab) update(t *testing.T, file string, options ...string) {
	t.Helper()
	l.reachable(t)
	f, err := os.Open(file)
	must(t, err)
	defer f.Close()
	cmd := l.command(append([]string{"appliance", "update"}, options...)...)
	cmd.Stdin = f
	// The reboot may end the connection before the command's status has come.
	if out, err := cmd.CombinedOutput(); !strings.Contains(string(out), "has release") {
		t.Fatalf("appliance update: %v\n%s", err, out)
	}
}

// reachable waits until the operator can log in: Weir may serve before.
func (l *lab) reachable(t *testing.T) {
	t.Helper()
	eventually(t, func() error { return l.stands("release") })
}

// variant makes a bundle of another version, with more options of the kernel, and with
// another root if there is one.
func (l *lab) variant(t *testing.T, version, options string, root []byte) string {
	t.Helper()
	dir := t.TempDir()
	m, err := bundle.Read(bytes.NewReader(read(t, filepath.Join(l.image, "weir-appliance.tar"))), machineOf,
		func(name string) (io.WriteCloser, error) { return os.Create(filepath.Join(dir, name)) })
	must(t, err)
	if root != nil {
		must(t, os.WriteFile(filepath.Join(dir, bundle.Root), root, 0o644))
	}
	m.Version = version
	m.Options += options
	f, err := os.Create(filepath.Join(dir, "bundle"))
	must(t, err)
	defer f.Close()
	must(t, bundle.Write(f, m, dir))
	return f.Name()
}

// stands returns nil if the appliance's state has a text.
func (l *lab) stands(text string) error {
	out, err := l.command("appliance", "state").CombinedOutput()
	if err == nil && !strings.Contains(string(out), text) {
		err = fmt.Errorf("no %q in the state:\n%s", text, out)
	}
	return err
}

func read(t *testing.T, file string) []byte {
	t.Helper()
	text, err := os.ReadFile(file)
	must(t, err)
	return text
}
