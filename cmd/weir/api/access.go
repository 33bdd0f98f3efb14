package api

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/user"
	"slices"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Access says who may ask for what, beside root and the user of the daemon, who may ask for
// everything. Others may not ask at all.
type Access struct {
	// Group is a group whose members may ask, by name or number; "": none.
	Group string
	// Full lets the members ask for everything. Otherwise they may read, without what shows
	// the contents of packets or memory, or costs the packet path.
	Full bool
}

// gid is the number of the group, -1 for none.
func (a Access) gid() (int, error) {
	if a.Group == "" {
		return -1, nil
	}
	if n, err := strconv.ParseUint(a.Group, 10, 31); err == nil {
		return int(n), nil
	}
	g, err := user.LookupGroup(a.Group)
	if err != nil {
		return -1, fmt.Errorf("admin.group: %w", err)
	}
	return strconv.Atoi(g.Gid)
}

// Check reports whether the group is known.
func (a Access) Check() error {
	_, err := a.gid()
	return err
}

// Share gives the group access to the socket, mode 0660.
func (a Access) Share(socket string) error {
	gid, err := a.gid()
	if err != nil || gid < 0 {
		return err
	}
	if err := os.Lchown(socket, -1, gid); err != nil {
		return fmt.Errorf("admin.group %s: %w (needs CAP_CHOWN, or a daemon that is in the group)", a.Group, err)
	}
	return os.Chmod(socket, 0o660)
}

// peer is the process at the other end of a connection.
type peer struct {
	pid int32
	uid uint32
	gid uint32
	// groups are the supplementary groups (Linux 4.13), nil before.
	groups []uint32
}

// peerOf asks the kernel for the credentials at the time of connect(2).
func peerOf(c net.Conn) (*peer, error) {
	if in, ok := c.(interface{ NetConn() net.Conn }); ok {
		c = in.NetConn()
	}
	uc, ok := c.(*net.UnixConn)
	if !ok {
		return nil, errors.New("no UNIX socket")
	}
	raw, err := uc.SyscallConn()
	if err != nil {
		return nil, err
	}
	var p *peer
	e := raw.Control(func(fd uintptr) {
		var cred *unix.Ucred
		if cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			p = &peer{cred.Pid, cred.Uid, cred.Gid, peerGroups(int(fd))}
		}
	})
	return p, errors.Join(e, err)
}

// peerGroups returns nil where the kernel does not say.
func peerGroups(fd int) []uint32 {
	size := uint32(0)
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_PEERGROUPS, 0, uintptr(unsafe.Pointer(&size)), 0)
	if errno != unix.ERANGE || size == 0 {
		return nil
	}
	b := make([]byte, size)
	_, _, errno = unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_PEERGROUPS,
		uintptr(unsafe.Pointer(&b[0])), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 {
		return nil
	}
	var out []uint32
	for ; len(b) >= 4; b = b[4:] {
		out = append(out, binary.NativeEndian.Uint32(b))
	}
	return out
}

// guard checks requests by the credentials of the process that sent them.
type guard struct {
	access Access
	gid    int
	log    *slog.Logger
}

type peerKey struct{}

// connContext keeps the credentials of a connection for its requests.
func (g *guard) connContext(ctx context.Context, c net.Conn) context.Context {
	p, err := peerOf(c)
	if err != nil {
		g.log.Warn("admin socket: credentials of a connection", "err", err)
		return ctx
	}
	return context.WithValue(ctx, peerKey{}, p)
}

// check returns why a request is refused, nil if it is not. Requests that change something are
// logged.
func (g *guard) check(r *http.Request, need *route) error {
	p, _ := r.Context().Value(peerKey{}).(*peer)
	switch {
	case p == nil:
		return errors.New("the credentials of the client are not known")
	case p.uid == 0 || int(p.uid) == os.Geteuid():
	case g.gid < 0 || int(p.gid) != g.gid && !slices.Contains(p.groups, uint32(g.gid)):
		return fmt.Errorf("uid %d may not use this socket: run the command as root%s", p.uid, g.remedy())
	case need.full && !g.access.Full:
		return fmt.Errorf("uid %d may only read: run the command as root, or set admin.groupAccess: full for group %s", p.uid, g.access.Group)
	}
	if need.full {
		g.log.Info("admin socket: request", "request", r.Method+" "+r.URL.Path, "uid", p.uid, "pid", p.pid)
	}
	return nil
}

// remedy is the other thing to do for a user without access.
func (g *guard) remedy() string {
	if g.gid < 0 {
		return ", or set admin.group to a group of the user"
	}
	return fmt.Sprintf(", or add the user to group %s", g.access.Group)
}
