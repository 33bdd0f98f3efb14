package appliance

import (
	"crypto/sha256"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weirlb/weir/deploy/appliance/bundle"
	"github.com/weirlb/weir/deploy/appliance/slot"
)

// crashes replays the writes of a machine to its disk, and looks at the disk as each power cut
// would leave it: after any write to the boot partition, and with any part of the writes that
// no flush had put on the disk yet. An emulator that is killed loses none of these.
type crashes struct {
	t     *testing.T
	l     *lab
	disk  *os.File // as it was before
	logs  []string
	boot  partition
	roots map[slot.Slot]partition
	sums  map[slot.Slot]string // of the roots on the disk, "" for those that have been written since
	known map[string]map[string]bundle.File
	seen  int // states of the disk
}

// newCrashes begins with the disk as it is.
func newCrashes(t *testing.T, l *lab) *crashes {
	t.Helper()
	c := &crashes{t: t, l: l, boot: l.partition(t, "weir-esp"), roots: map[slot.Slot]partition{}, sums: map[slot.Slot]string{},
		known: map[string]map[string]bundle.File{}}
	for _, s := range slot.Slots {
		c.roots[s] = l.partition(t, s.Partition())
	}
	run(t, "cp", "--sparse=always", l.at("disk"), l.at("crash"))
	var err error
	c.disk, err = os.OpenFile(l.at("crash"), os.O_RDWR, 0)
	must(t, err)
	t.Cleanup(func() { c.disk.Close() })
	c.release(filepath.Join(l.image, "weir-appliance.tar"))
	return c
}

// release notes the files of a bundle.
func (c *crashes) release(file string) {
	c.t.Helper()
	f, err := os.Open(file)
	must(c.t, err)
	defer f.Close()
	m, err := bundle.Read(f, machineOf, func(string) (io.WriteCloser, error) { return nowhere{io.Discard}, nil })
	must(c.t, err)
	c.known[m.Version] = m.Files
}

// machineOf is an appliance of any size.
var machineOf = bundle.Machine{Architecture: "amd64", Room: math.MaxInt64, Boot: math.MaxInt64}

type nowhere struct{ io.Writer }

func (nowhere) Close() error { return nil }

// record has the next start of the machine log its writes.
func (c *crashes) record() {
	c.l.writes = c.l.at(fmt.Sprintf("writes-%d", len(c.logs)))
	c.logs = append(c.logs, c.l.writes)
}

func (c *crashes) end() { c.l.writes = "" }

// check replays the logs. update is the bundle that was installed meanwhile.
func (c *crashes) check(update string) {
	c.t.Helper()
	c.release(update)
	random := rand.New(rand.NewPCG(1, 2))
	for _, log := range c.logs {
		f, err := os.Open(log)
		must(c.t, err)
		for _, e := range epochs(c.t, f) {
			c.replay(f, e, random)
			if c.t.Failed() {
				break
			}
		}
		f.Close()
	}
	if c.seen == 0 {
		c.t.Error("no write to the boot partition was replayed")
	}
	c.t.Logf("%d states of the disk after a power cut", c.seen)
}

// partsOfEpoch is how many parts of the writes between two flushes are tried.
const partsOfEpoch = 4

// replay applies the writes between two flushes: some parts of them, and then all.
func (c *crashes) replay(log *os.File, epoch []write, random *rand.Rand) {
	boots := 0
	for _, w := range epoch {
		if w.meets(c.boot) {
			boots++
		}
	}
	for range min(boots, partsOfEpoch) {
		var undo []func()
		for _, w := range epoch {
			if random.IntN(2) == 0 {
				undo = append(undo, c.apply(log, w))
			}
		}
		c.look(true)
		for i := len(undo) - 1; i >= 0; i-- {
			undo[i]()
		}
	}
	for _, w := range epoch {
		c.apply(log, w)
		if w.meets(c.boot) {
			boots--
			c.look(boots == 0)
		}
	}
}

// apply does a write, and returns what undoes it.
func (c *crashes) apply(log *os.File, w write) func() {
	put := func(data []byte) {
		_, err := c.disk.WriteAt(data, w.start)
		must(c.t, err)
		for s, p := range c.roots {
			if w.meets(p) {
				delete(c.sums, s)
			}
		}
	}
	before, data := make([]byte, w.size), make([]byte, w.size)
	_, err := c.disk.ReadAt(before, w.start)
	must(c.t, err)
	_, err = log.ReadAt(data, w.data)
	must(c.t, err)
	put(data)
	return func() { put(before) }
}

// look looks for the entry that the loader would take from the disk, and with whole for all
// bytes of its slot.
func (c *crashes) look(whole bool) {
	c.seen++
	if err := c.bootable(whole); err != nil {
		c.t.Errorf("state %d of the disk: %v", c.seen, err)
	}
}

func (c *crashes) bootable(whole bool) error {
	dir := c.t.TempDir()
	defer os.RemoveAll(dir)
	entries := slot.Entries{Root: dir}
	if err := c.copyEntries(filepath.Join(dir, "loader", "entries")); err != nil {
		return err
	}
	list, err := entries.List()
	if err != nil {
		return err
	}
	for _, e := range list {
		// The loader leaves out entries without a kernel.
		if !e.Bootable() || e.Version == "" {
			continue
		}
		if !whole {
			return nil
		}
		return c.whole(e)
	}
	return fmt.Errorf("no entry can be booted: %+v", list)
}

// copyEntries copies the entries of the loader that can be read, as the loader does: a cut may
// leave a file whose clusters are not in the file allocation table yet.
func (c *crashes) copyEntries(to string) error {
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	names, err := c.mtools("mdir", "-b", "-i", c.image(), "::/loader/entries")
	if err != nil {
		return err
	}
	for _, name := range strings.Fields(string(names)) {
		if text, err := c.mtools("mtype", "-i", c.image(), name); err == nil {
			if err := os.WriteFile(filepath.Join(to, path.Base(name)), text, 0o644); err != nil {
				return err
			}
		}
	}
	return nil
}

// whole returns an error if a file of a slot is not that of the entry's release.
func (c *crashes) whole(e slot.Entry) error {
	files, ok := c.known[e.Version]
	if !ok {
		return fmt.Errorf("slot %s has the unknown release %q", e.Slot, e.Version)
	}
	for _, name := range []string{bundle.Kernel, bundle.Initramfs} {
		text, err := c.mtools("mtype", "-i", c.image(), "::/"+e.Slot.Folder()+"/"+name)
		if err != nil {
			return err
		}
		if got := fmt.Sprintf("%x", sha256.Sum256(text)); got != files[name].SHA256 {
			return fmt.Errorf("slot %s of release %s: %s is not whole", e.Slot, e.Version, name)
		}
	}
	if c.sums[e.Slot] == "" {
		h := sha256.New()
		if _, err := io.Copy(h, io.NewSectionReader(c.disk, c.roots[e.Slot].start, files[bundle.Root].Size)); err != nil {
			return err
		}
		c.sums[e.Slot] = fmt.Sprintf("%x", h.Sum(nil))
	}
	if c.sums[e.Slot] != files[bundle.Root].SHA256 {
		return fmt.Errorf("slot %s of release %s: the root is not whole", e.Slot, e.Version)
	}
	return nil
}

// image is the boot partition, as mtools name it.
func (c *crashes) image() string { return fmt.Sprintf("%s@@%d", c.disk.Name(), c.boot.start) }

func (c *crashes) mtools(name string, args ...string) ([]byte, error) {
	cmd := exec.Command(name, args...)
	cmd.Env = append(os.Environ(), "MTOOLS_SKIP_CHECK=1")
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, said.String())
	}
	return out, err
}
