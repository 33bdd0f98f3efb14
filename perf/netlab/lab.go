// Package netlab builds small networks out of Linux network namespaces:
// nodes joined by veth pairs, bridges and VXLAN, with real processes and real
// sockets inside. It needs root and nothing else; no command is executed.
//
// # Life of a namespace
//
// A [Namespace] is held by a parked OS thread that has left the network
// and mount namespaces of the process. Nothing is bind-mounted into the host:
// when the process ends, however it ends, the kernel takes the threads, the
// namespaces, their links and their BPF pins with it. Only a directory of temporary files
// and the symbolic links in /run/netns that make `ip netns exec` work can outlive a killed
// process. Their names carry the process's id and start time, and the next [New] removes
// those whose process is gone.
//
// # Processes
//
// [Namespace.Start] runs a command inside: it sees the namespace's own
// /proc/sys/net, /sys/class/net and an empty /sys/fs/bpf, and is killed when
// the process that started it dies.
package netlab

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
)

// netnsDir is where `ip netns` looks for namespaces.
const netnsDir = "/run/netns"

// Lab is a set of namespaces that live and end together.
type Lab struct {
	name string
	dir  string

	mu         sync.Mutex
	namespaces []*Namespace
	closers    []func() error
	closed     bool
}

// New makes an empty lab. It first removes the remains of labs whose process is gone.
func New() (*Lab, error) {
	if err := Available(); err != nil {
		return nil, err
	}
	if err := Reap(); err != nil {
		return nil, fmt.Errorf("remove what an earlier lab left: %w", err)
	}
	name, err := newName()
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(os.TempDir(), name)
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, err
	}
	return &Lab{name: name, dir: dir}, nil
}

// Available says why no lab can be made here, or nil.
func Available() error {
	if os.Geteuid() != 0 {
		return errors.New("network namespaces need root (CAP_SYS_ADMIN and CAP_NET_ADMIN)")
	}
	return nil
}

// Name is the prefix of everything that the lab puts into the host.
func (l *Lab) Name() string { return l.name }

// Dir is a directory for the lab's files; Close removes it.
func (l *Lab) Dir() string { return l.dir }

// OnClose registers f to be called by Close, last registered first, while
// the namespaces still exist.
func (l *Lab) OnClose(f func() error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closers = append(l.closers, f)
}

// Namespace makes a namespace whose name ends in name.
func (l *Lab) Namespace(name string) (*Namespace, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, errors.New("lab is closed")
	}
	n, err := newNamespace(name, filepath.Join(netnsDir, l.name+"-"+name))
	if err != nil {
		return nil, fmt.Errorf("namespace %s: %w", name, err)
	}
	l.namespaces = append(l.namespaces, n)
	return n, nil
}

// Namespaces are the namespaces made so far.
func (l *Lab) Namespaces() []*Namespace {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]*Namespace(nil), l.namespaces...)
}

// Close ends every process, namespace and file of the lab. It may be called
// more than once.
func (l *Lab) Close() error {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return nil
	}
	l.closed = true
	closers, namespaces := l.closers, l.namespaces
	l.mu.Unlock()

	var errs []error
	for i := len(closers) - 1; i >= 0; i-- {
		errs = append(errs, closers[i]())
	}
	for i := len(namespaces) - 1; i >= 0; i-- {
		errs = append(errs, namespaces[i].close())
	}
	errs = append(errs, os.RemoveAll(l.dir))
	return errors.Join(errs...)
}
