// Package router runs the BGP routers FRR and BIRD in namespaces of a lab, as they are
// installed by Debian's packages.
package router

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/weirlb/weir/perf/netlab"
	"github.com/weirlb/weir/perf/netlab/patience"
)

// frrDaemons is where Debian has FRR's daemons, which are in no PATH.
const frrDaemons = "/usr/lib/frr"

// FRRAvailable says why FRR cannot be run here, or nil.
func FRRAvailable() error {
	if _, err := os.Stat(filepath.Join(frrDaemons, "bgpd")); err != nil {
		return fmt.Errorf("FRR is not installed (apt-get install frr): %w", err)
	}
	return nil
}

// BIRDAvailable says why BIRD cannot be run here, or nil.
func BIRDAvailable() error {
	if _, err := exec.LookPath("bird"); err != nil {
		return fmt.Errorf("BIRD is not installed (apt-get install bird2): %w", err)
	}
	return nil
}

// Router is a router in a namespace.
type Router struct {
	n       *netlab.Namespace
	dir     string
	daemons []*netlab.Daemon
}

// startWithin is how long a daemon may take to be there.
const startWithin = 20 * time.Second

// daemon is a daemon of FRR with its socket, which is there once the daemon is.
type daemon struct {
	name, socket string
	options      []string
}

// StartFRR starts zebra and bgpd with a configuration, and bfdd if the configuration has BFD, in
// files below dir.
func StartFRR(n *netlab.Namespace, dir, config string) (*Router, error) {
	r, err := newRouter(n, dir, "frr")
	if err != nil {
		return nil, err
	}
	if err := chown(r.dir, "frr"); err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(r.dir, "frr.conf"), []byte(config), 0o644); err != nil {
		return nil, err
	}
	daemons := []daemon{{"zebra", "zserv.api", nil}, {"bgpd", "bgpd.vty", nil}}
	if slices.Contains(strings.Split(config, "\n"), bfdLine) {
		daemons = slices.Insert(daemons, 1, daemon{"bfdd", "bfdd.vty", []string{"--bfdctl", "bfdd.sock"}})
	}
	for _, d := range daemons {
		// By paths from the directory: the user frr may be kept out of those above it. The shell is
		// the first process of a PID namespace, and ends with the lab; a daemon that changes
		// its user is not sent the signal of its parent's death.
		cmd := exec.Command("/bin/sh", "-c", `"$@"; exit`, "sh", filepath.Join(frrDaemons, d.name), "-f", "/proc/self/cwd/frr.conf",
			"--vty_socket", ".", "-z", "zserv.api", "-i", d.name+".pid", "--log", "stdout")
		cmd.Args = append(cmd.Args, d.options...)
		cmd.Dir, cmd.SysProcAttr = r.dir, &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
		if err := r.start(cmd, d.name, d.socket); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// StartBIRD starts bird with a configuration, in files below dir.
func StartBIRD(n *netlab.Namespace, dir, config string) (*Router, error) {
	r, err := newRouter(n, dir, "bird")
	if err != nil {
		return nil, err
	}
	file := filepath.Join(r.dir, "bird.conf")
	if err := os.WriteFile(file, []byte(config), 0o644); err != nil {
		return nil, err
	}
	bird, err := exec.LookPath("bird")
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(bird, "-f", "-c", file, "-s", filepath.Join(r.dir, "bird.ctl"), "-P", filepath.Join(r.dir, "bird.pid"))
	return r, r.start(cmd, "bird", "bird.ctl")
}

func newRouter(n *netlab.Namespace, dir, kind string) (*Router, error) {
	r := &Router{n: n, dir: filepath.Join(dir, kind+"-"+n.Name())}
	return r, os.MkdirAll(r.dir, 0o755)
}

func chown(dir, name string) error {
	u, err := user.Lookup(name)
	if err != nil {
		return err
	}
	uid, err1 := strconv.Atoi(u.Uid)
	gid, err2 := strconv.Atoi(u.Gid)
	return errors.Join(err1, err2, os.Chown(dir, uid, gid))
}

// start starts a daemon and waits for its socket.
func (r *Router) start(cmd *exec.Cmd, name, socket string) error {
	d, err := r.n.StartDaemon(cmd, filepath.Join(r.dir, name+".log"))
	if err != nil {
		return err
	}
	r.daemons = append(r.daemons, d)
	ctx, cancel := context.WithTimeout(context.Background(), patience.For(startWithin))
	defer cancel()
	err = d.Until(ctx, func(context.Context) error {
		_, err := os.Stat(filepath.Join(r.dir, socket))
		return err
	})
	if err != nil {
		return fmt.Errorf("%s: %w\n%s", name, err, d.LogTail(20))
	}
	return nil
}

// Dir is the directory with the sockets of the daemons, for vtysh and birdc.
func (r *Router) Dir() string { return r.dir }

// Log is the end of what the daemons said.
func (r *Router) Log() string {
	var b strings.Builder
	for _, d := range r.daemons {
		fmt.Fprintf(&b, "%s:\n%s\n", d.LogFile(), d.LogTail(20))
	}
	return b.String()
}

// Kill ends the daemons at once.
func (r *Router) Kill() error {
	var errs []error
	for _, d := range slices.Backward(r.daemons) {
		errs = append(errs, d.Kill())
	}
	return errors.Join(errs...)
}

// VTYSH runs a command of FRR with a JSON answer.
func (r *Router) VTYSH(command string, into any) error {
	cmd := exec.Command("vtysh", "--vty_socket", r.dir, "-c", command)
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("vtysh %s: %w", command, err)
	}
	if err := json.Unmarshal(out, into); err != nil {
		return fmt.Errorf("vtysh %s: %w: %s", command, err, out)
	}
	return nil
}

// NextHops are the next hops of a namespace's route to exactly a prefix, sorted; none without
// such a route. Routes that a router has learnt are there once they take traffic.
func NextHops(n *netlab.Namespace, p netip.Prefix) ([]netip.Addr, error) {
	out, err := HopsInOrder(n, p)
	slices.SortFunc(out, netip.Addr.Compare)
	return out, err
}

// HopsInOrder are those next hops in the order in which the kernel has them, on which it depends
// which flows move when one of them goes (RFC 2992).
func HopsInOrder(n *netlab.Namespace, p netip.Prefix) ([]netip.Addr, error) {
	family := netlink.FAMILY_V4
	if p.Addr().Is6() {
		family = netlink.FAMILY_V6
	}
	routes, err := n.Netlink().RouteList(nil, family)
	if err != nil {
		return nil, err
	}
	var out []netip.Addr
	add := func(gw []byte, via netlink.Destination) {
		if v, ok := via.(*netlink.Via); ok {
			gw = v.Addr
		}
		if a, ok := netip.AddrFromSlice(gw); ok {
			out = append(out, a.Unmap())
		}
	}
	for i := range routes {
		route := &routes[i]
		if route.Dst == nil || route.Dst.String() != p.String() {
			continue
		}
		if len(route.MultiPath) == 0 {
			add(route.Gw, route.Via)
		}
		for _, hop := range route.MultiPath {
			add(hop.Gw, hop.Via)
		}
	}
	return out, nil
}
