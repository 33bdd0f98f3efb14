package netlab

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Namespace is a network namespace with a mount namespace of its own, whose
// /sys shows the namespace's interfaces. All methods may be called from any
// goroutine.
type Namespace struct {
	name string
	path string // symbolic link in /run/netns, "" when it could not be made
	tid  int    // the parked thread

	calls   chan func()   // run by the parked thread
	stopped chan struct{} // closed when the thread is about to end

	mu     sync.Mutex
	handle netns.NsHandle
	nl     *netlink.Handle
	procs  []*Process
}

func newNamespace(name, path string) (*Namespace, error) {
	n := &Namespace{name: name, calls: make(chan func()), stopped: make(chan struct{}), handle: netns.None()}
	ready := make(chan error)
	onThread(func() { n.hold(ready) })
	if err := <-ready; err != nil {
		return nil, err
	}
	var err error
	if n.handle, err = netns.GetFromThread(os.Getpid(), n.tid); err != nil {
		return nil, errors.Join(err, n.close())
	}
	if n.nl, err = netlink.NewHandleAt(n.handle, unix.NETLINK_ROUTE); err != nil {
		return nil, errors.Join(err, n.close())
	}
	if err := n.prepare(); err != nil {
		return nil, errors.Join(err, n.close())
	}
	// The link is a convenience for people; a read-only /run is no reason
	// to do without a lab.
	if os.MkdirAll(netnsDir, 0o755) == nil &&
		os.Symlink(fmt.Sprintf("/proc/%d/task/%d/ns/net", os.Getpid(), n.tid), path) == nil {
		n.path = path
	}
	return n, nil
}

// onThread runs f on a locked OS thread that ends with f. It is never the process's first
// thread, which cannot end, and /proc/self shows its
// namespaces.
func onThread(f func()) {
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() != unix.Getpid() {
			f()
			return
		}
		defer runtime.UnlockOSThread()
		taken := make(chan struct{})
		go func() {
			runtime.LockOSThread()
			close(taken)
			f()
		}()
		<-taken // on another thread, as this thread is still locked here
	}()
}

// hold makes the namespaces and then serves calls until there are no more.
func (n *Namespace) hold(ready chan<- error) {
	defer close(n.stopped)
	n.tid = unix.Gettid()
	if err := unix.Unshare(unix.CLONE_NEWNET | unix.CLONE_NEWNS); err != nil {
		ready <- fmt.Errorf("unshare network and mount namespace: %w", err)
		return
	}
	if err := mountOwn(); err != nil {
		ready <- err
		return
	}
	ready <- nil
	for f := range n.calls {
		f()
	}
}

// mountOwn gives the calling thread's mount namespace a /sys that shows its
// network namespace, as `ip netns exec` does, and an empty /sys/fs/bpf.
func mountOwn() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	// The new /sys hides the mounts below the old /sys; cgroups are
	// carried over, so that memory limits stay readable inside.
	cgroup, cgroupErr := unix.OpenTree(unix.AT_FDCWD, "/sys/fs/cgroup",
		unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
	if err := unix.Mount("sysfs", "/sys", "sysfs", 0, ""); err != nil {
		return fmt.Errorf("mount /sys: %w", err)
	}
	if err := unix.Mount("bpf", "/sys/fs/bpf", "bpf", 0, "mode=0700"); err != nil {
		return fmt.Errorf("mount /sys/fs/bpf: %w", err)
	}
	if cgroupErr == nil {
		_ = unix.MoveMount(cgroup, "", unix.AT_FDCWD, "/sys/fs/cgroup", unix.MOVE_MOUNT_F_EMPTY_PATH)
		_ = unix.Close(cgroup)
	}
	return nil
}

// prepare brings the loopback up and makes IPv6 addresses usable at once:
// there is nobody here to collide with or to hear router advertisements from.
func (n *Namespace) prepare() error {
	for _, which := range []string{"all", "default"} {
		for _, key := range []string{"accept_dad", "dad_transmits", "accept_ra", "router_solicitations"} {
			if err := n.SetSysctl("net/ipv6/conf/"+which+"/"+key, "0"); err != nil {
				return err
			}
		}
	}
	return n.up("lo")
}

// Name is the name given to Lab.Namespace.
func (n *Namespace) Name() string { return n.name }

// Path names the namespace for `nsenter --net=`. It is valid while the
// process lives.
func (n *Namespace) Path() string {
	if n.path != "" {
		return n.path
	}
	return fmt.Sprintf("/proc/%d/task/%d/ns/net", os.Getpid(), n.tid)
}

// Thread is the id of the parked thread: `nsenter -t TID -n -m` enters the
// network and the mount namespace.
func (n *Namespace) Thread() int { return n.tid }

// Handle is a file descriptor of the network namespace, owned by n.
func (n *Namespace) Handle() netns.NsHandle {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.handle
}

// Netlink is a route netlink handle inside the namespace.
func (n *Namespace) Netlink() *netlink.Handle { return n.nl }

// Do runs f on a new OS thread inside the network namespace and
// returns f's error. Sockets that f opens belong to the namespace for good;
// goroutines that f starts are outside it. The mount namespace is the
// process's: see Inside.
func (n *Namespace) Do(f func() error) error {
	h := n.Handle()
	if !h.IsOpen() {
		return fmt.Errorf("namespace %s is closed", n.name)
	}
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		home, err := netns.Get()
		if err != nil {
			runtime.UnlockOSThread()
			done <- err
			return
		}
		defer home.Close()
		if err := netns.Set(h); err != nil {
			runtime.UnlockOSThread()
			done <- fmt.Errorf("enter namespace %s: %w", n.name, err)
			return
		}
		err = f()
		if back := netns.Set(home); back == nil {
			runtime.UnlockOSThread()
		} // else the thread is not fit for anything else and ends here
		done <- err
	}()
	return <-done
}

// Inside runs f on the namespace's own thread, in its network and mount
// namespaces: /sys and /sys/fs/bpf are the namespace's. Calls run after one another.
func (n *Namespace) Inside(f func() error) error {
	done := make(chan error, 1)
	select {
	case n.calls <- func() { done <- f() }:
		return <-done
	case <-n.stopped:
		return fmt.Errorf("namespace %s is closed", n.name)
	}
}

func (n *Namespace) close() error {
	var errs []error
	n.mu.Lock()
	procs := n.procs
	h := n.handle
	n.handle = netns.None()
	n.mu.Unlock()
	for _, p := range procs {
		errs = append(errs, p.Kill())
	}
	if n.path != "" {
		errs = append(errs, os.Remove(n.path))
	}
	if n.nl != nil {
		n.nl.Close()
	}
	if h.IsOpen() {
		errs = append(errs, h.Close())
	}
	close(n.calls)
	<-n.stopped
	return errors.Join(errs...)
}
