package steer

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	bpfpin "github.com/cilium/ebpf/pin"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/conntrack/statefile"
)

// ErrNotBPFFS: the directory for pins is not in a BPF file system.
var ErrNotBPFFS = errors.New("not a BPF file system (mount -t bpf bpf /sys/fs/bpf; ip netns exec hides it, nsenter --net=FILE does not)")

// tablePrefix begins the names of pinned flow tables, which are lb/flowcache's.
const tablePrefix = "flowtable-"

// errForeign: something in the directory for pins is neither an XDP nor a TCX link, and so
// not Weir's. It is left alone.
var errForeign = errors.New("not Weir's")

// openPin opens a pinned XDP or TCX link.
func openPin(path string) (link.Link, error) {
	if err := statefile.Pin(path); err != nil {
		return nil, fmt.Errorf("%w, so %w: remove it", err, errForeign)
	}
	l, err := link.LoadPinnedLink(path, nil)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, ours := range []error{unix.EPERM, unix.EMFILE, unix.ENFILE, unix.ENOMEM} { // they say nothing about the pin
		if errors.Is(err, ours) {
			return nil, fmt.Errorf("open pinned link %s: %w%s", path, err, loadErrorHint(err))
		}
	}
	if err != nil {
		return nil, errForeignPin(path, objectKind(path))
	}
	info, err := l.Info()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open pinned link %s: %w", path, err), l.Close())
	}
	if info.Type != link.XDPType && info.Type != link.TCXType {
		_ = l.Close()
		return nil, errForeignPin(path, "a BPF link of another kind")
	}
	return l, nil
}

func errForeignPin(path, kind string) error {
	return fmt.Errorf("%s is %s, %w: move it out of this directory or remove it", path, kind, errForeign)
}

// objectKind names the kind of object pinned at path, if it is not a link.
func objectKind(path string) string {
	p, err := bpfpin.Load(path, nil)
	if err != nil {
		return "no BPF object"
	}
	defer p.Close()
	switch p.(type) {
	case *ebpf.Map:
		return "a BPF map"
	case *ebpf.Program:
		return "a BPF program"
	}
	return "a BPF object of a new kind"
}

// pinned is a link of Weir's that is pinned. The kernel is asked for the interface once: the
// answer waits for a lock of the whole kernel's (RTNL), for each link.
type pinned struct {
	path  string
	index int
	hook  Hook
}

// preparePin makes the directory, removes stale pins from it, and returns the
// path for the interface's link at a hook, and all pins.
func preparePin(dir, name string, h Hook) (string, []pinned, error) {
	ns, err := netnsInode()
	if err != nil {
		return filepath.Join(dir, name), nil, err
	}
	// The namespace is part of the name as interface names are not unique
	// across namespaces. BPF file systems allow no dots, which interface names
	// (VLANs) may have; a slash they cannot have.
	path := pinPath(dir, ns, strings.ReplaceAll(name, ".", "_"), h)
	if err := checkBPFFS(dir); err != nil {
		return path, nil, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return path, nil, err
	}
	if err := statefile.Directory(dir); err != nil {
		return path, nil, err
	}
	pins, err := listPins(dir)
	return path, pins, err
}

// checkBPFFS looks at the nearest ancestor of dir that exists.
func checkBPFFS(dir string) error {
	for {
		var st unix.Statfs_t
		err := unix.Statfs(dir, &st)
		if err == nil {
			if uint32(st.Type) != unix.BPF_FS_MAGIC {
				return ErrNotBPFFS
			}
			return nil
		}
		parent := filepath.Dir(dir)
		if !errors.Is(err, fs.ErrNotExist) || parent == dir {
			return err
		}
		dir = parent
	}
}

// followRename moves the pin of an interface that has been renamed since to path, the pin's
// new name.
func followRename(path string, in Interface, pins []pinned) error {
	i := slices.IndexFunc(pins, func(p pinned) bool {
		return p.path != path && p.index == in.Index && p.hook == in.Hook && sameNetns(p.path, path)
	})
	if i < 0 {
		return nil
	}
	switch there, err := openPin(path); {
	case errors.Is(err, errForeign):
		return err // not to be replaced
	case err == nil:
		_ = there.Close()
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.Rename(pins[i].path, path)
}

// sameNetns reports whether two pins are of the same network namespace.
func sameNetns(a, b string) bool {
	ns, _, _ := strings.Cut(filepath.Base(a), "-")
	return strings.HasPrefix(filepath.Base(b), ns+"-")
}

// reusable reports whether l is attached to the interface, at the hook and in a mode that was
// asked for.
func reusable(l link.Link, in Interface) bool {
	if index, hook := linkPlace(l); index != in.Index || hook != in.Hook {
		return false
	}
	if in.Hook == TCX || in.Mode == Auto {
		return true
	}
	mode, err := attachedMode(in.Index)
	return err == nil && mode == in.Mode
}

// listPins lists the links that are pinned in dir, and removes the pins of those whose
// interface is gone.
func listPins(dir string) (pins []pinned, err error) {
	_, err = walkPins(dir, func(path string, l link.Link) error {
		index, hook := linkPlace(l)
		if index == 0 {
			return l.Unpin()
		}
		pins = append(pins, pinned{path, index, hook})
		return nil
	})
	return pins, err
}

// CleanupStale detaches the links that are pinned in dir ("" is DefaultPinDir) of the calling
// thread's network namespace, and removes the maps: the remains of a killed Weir in the kernel's
// receive path. Remains of namespaces that are gone go too, links whose interface is in this one
// now, and dir if nothing is left in it. A missing directory is not an error; a foreign object in
// it is, and stays.
func CleanupStale(dir string) error {
	if dir == "" {
		dir = DefaultPinDir
	}
	if err := checkBPFFS(dir); err != nil {
		return nil // then nothing can be pinned there
	}
	ns, err := netnsInode()
	if err != nil {
		return err
	}
	if err := removeMapPins(dir, fmt.Sprint(mapsPrefix, ns, "-")); err != nil {
		return err
	}
	others, err := walkPins(dir, func(path string, l link.Link) error {
		switch index, _ := linkPlace(l); {
		case ofNetns(path, ns) || index != 0 && isHere(l, index):
			return detachPinned(l)
		case index == 0: // the interface is gone
			return l.Unpin()
		}
		return nil
	})
	if err := errors.Join(err, others); err != nil {
		return err
	}
	if err := removeMapsOfGone(dir); err != nil {
		return err
	}
	err = os.Remove(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENOTEMPTY) {
		return fmt.Errorf("remove pin directory: %w", err)
	}
	return nil
}

// ofNetns reports whether a pin is of a network namespace.
func ofNetns(path string, ns uint64) bool {
	return strings.HasPrefix(filepath.Base(path), fmt.Sprintf("%d-", ns))
}

// isHere reports whether a link of another network namespace is on an interface of this one: a
// physical interface goes on when its namespace ends, with an XDP program and without a TCX program.
func isHere(l link.Link, index int) bool {
	info, err := l.Info()
	if err != nil {
		return false
	}
	dev, err := netlink.LinkByIndex(index)
	return err == nil && dev.Attrs().Xdp != nil && dev.Attrs().Xdp.ProgId == uint32(info.Program)
}

// detachPinned detaches a pinned link, and removes the pin.
func detachPinned(l link.Link) error {
	if err := detachLink(l); err != nil {
		return err
	}
	return l.Unpin()
}

// walkPins calls f for every link of Weir's that is pinned in dir, and returns other objects as
// others.
func walkPins(dir string, f func(path string, l link.Link) error) (others, err error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if err := statefile.Directory(dir); err != nil {
		return err, nil
	}
	var errs []error
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if e.IsDir() && strings.HasPrefix(e.Name(), mapsPrefix) || strings.HasPrefix(e.Name(), tablePrefix) {
			continue // see adopt.go, and lb/flowcache
		}
		if strings.HasPrefix(e.Name(), probePrefix) {
			_ = os.Remove(path) // of a probe that was killed
			continue
		}
		l, err := openPin(path)
		switch {
		case errors.Is(err, fs.ErrNotExist): // another process has just removed it
		case errors.Is(err, errForeign):
			others = errors.Join(others, err)
		case err != nil:
			errs = append(errs, err)
		default:
			errs = append(errs, f(path, l), l.Close())
		}
	}
	return others, errors.Join(errs...)
}

// netnsInode identifies the network namespace of the calling thread.
func netnsInode() (uint64, error) {
	var st unix.Stat_t
	if err := unix.Stat(fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid()), &st); err != nil {
		return 0, fmt.Errorf("identify network namespace: %w", err)
	}
	return st.Ino, nil
}
