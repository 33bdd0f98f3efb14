package fleet

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netns"

	"github.com/weirlb/weir/cmd/weir/decap"
	"github.com/weirlb/weir/perf/netlab"
	"github.com/weirlb/weir/perf/netlab/weirtest"
	"github.com/weirlb/weir/perf/netlab/workload"
)

// roleVariable names the role of a process of this test binary: all clients, or all endpoints.
// Each has a file per connection, and the limit of open files may not suffice for both.
const roleVariable = "WEIR_FLEET_ROLE"

func TestMain(m *testing.M) {
	role := map[string]func() error{"clients": runClients, "endpoints": runEndpoints}[os.Getenv(roleVariable)]
	if role == nil {
		weirtest.Main(m)
	}
	if err := role(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// child is a process of this binary, which answers requests.
type child struct {
	t       *testing.T
	request *json.Encoder
	answer  *json.Decoder
}

// child starts a process with a role in a namespace. It ends with the lab.
func (b *bed) child(n *netlab.Namespace, name string) *child {
	b.t.Helper()
	self, err := os.Executable()
	must(b.t, err)
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), roleVariable+"="+name)
	in, err := cmd.StdinPipe()
	must(b.t, err)
	out, to := io.Pipe()
	cmd.Stdout, cmd.Stderr = to, os.Stderr
	p, err := n.Start(cmd)
	must(b.t, err)
	b.OnClose(out.Close) // the end of a process waits until its output is read
	go func() {
		<-p.Done()
		_ = to.Close()
	}()
	return &child{b.t, json.NewEncoder(in), json.NewDecoder(out)}
}

// call waits for the answer to a request.
func (p *child) call(request, answer any) {
	p.t.Helper()
	must(p.t, p.request.Encode(request))
	must(p.t, p.answer.Decode(answer))
}

// server is an endpoint.
type server struct{ Name, Namespace string }

// runEndpoints serves all endpoints until the end of standard input. The request is a list of
// servers.
func runEndpoints() error {
	in := json.NewDecoder(os.Stdin)
	var servers []server
	if err := in.Decode(&servers); err != nil {
		return err
	}
	for _, p := range servers {
		if err := p.open(); err != nil {
			return fmt.Errorf("endpoint %s: %w", p.Name, err)
		}
	}
	if err := json.NewEncoder(os.Stdout).Encode(len(servers)); err != nil {
		return err
	}
	_, err := io.Copy(io.Discard, os.Stdin)
	return err
}

// writer is a function as an io.Writer.
type writer func([]byte) (int, error)

func (w writer) Write(b []byte) (int, error) { return w(b) }

// open starts a server and a receiver of tunnels in the namespace of an endpoint.
func (p *server) open() error {
	ready := make(chan error, 2)
	go func() {
		runtime.LockOSThread() // for good: the thread stays in the namespace
		ready <- p.serve(func() { ready <- nil })
	}()
	return <-ready
}

// serve is open on a thread of its own, and returns only errors.
func (p *server) serve(ready func()) error {
	h, err := netns.GetFromPath(p.Namespace)
	if err != nil {
		return err
	}
	if err := netns.Set(h); err != nil {
		return err
	}
	l, err := net.Listen("tcp", fmt.Sprintf("[::]:%d", port))
	if err != nil {
		return err
	}
	go p.accept(l)
	rules := decap.Rules{Addresses: []netip.Addr{vip4, vip6}, From: []netip.Prefix{
		netip.PrefixFrom(netlab.Host4(netlab.FleetNet, 0), 24), netip.PrefixFrom(netlab.Host6(netlab.FleetNet, 0), 64)}}
	return decap.Run(context.Background(), rules, decap.Settings{Device: "weir-decap"}, writer(func(b []byte) (int, error) {
		ready() // the first line
		return len(b), nil
	}))
}

// accept answers each line with the name of the endpoint.
func (p *server) accept(l net.Listener) {
	answer := []byte(p.Name + "\n")
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			line := make([]byte, 1)
			for {
				if _, err := c.Read(line); err != nil {
					return
				}
				if _, err := c.Write(answer); err != nil {
					return
				}
			}
		}()
	}
}

// round is a request to the clients: use all connections once, and before that open some in
// the place of those that exist, if Open is not 0.
type round struct {
	Open     int
	Sources  []netip.Addr // of the connections in turn
	Targets  []netip.AddrPort
	PerSec   int
	Within   time.Duration
	Progress bool
}

// client is a connection, and the outcome of its last use.
type client struct {
	Address  netip.AddrPort
	Endpoint string // the name
	Failure  string // the kind, of workload.Kind; no more use
	Error    string

	conn net.Conn
}

// runClients opens and uses connections until the end of standard input.
func runClients() error {
	in, out := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	var clients []*client
	for {
		var v round
		if err := in.Decode(&v); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if v.Open > 0 {
			for _, c := range clients {
				c.close()
			}
			clients = make([]*client, v.Open)
			v.each("opened", len(clients), func(i int) {
				clients[i] = &client{}
				clients[i].open(&v, i)
			})
		}
		v.each("used", len(clients), func(i int) { clients[i].use(&v) })
		if err := out.Encode(clients); err != nil {
			return err
		}
	}
}

// each calls f for each of n, at a bounded rate, and not for too many at the same time.
func (v *round) each(done string, n int, f func(i int)) {
	const atOnce = 256
	tick, shown := time.NewTicker(time.Second/time.Duration(v.PerSec)), time.Now()
	defer tick.Stop()
	slots := make(chan struct{}, atOnce)
	var all sync.WaitGroup
	for i := range n {
		<-tick.C
		slots <- struct{}{}
		all.Go(func() {
			f(i)
			<-slots
		})
		if v.Progress && time.Since(shown) > 5*time.Second {
			shown = time.Now()
			fmt.Fprintf(os.Stderr, "%s %d of %d connections\n", done, i+1, n)
		}
	}
	all.Wait()
}

func (c *client) open(v *round, i int) {
	k := i % len(v.Targets)
	d := net.Dialer{Timeout: v.Within, LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(v.Sources[k], 0))}
	conn, err := d.Dial("tcp", v.Targets[k].String())
	if err != nil {
		c.fail(err)
		return
	}
	a := conn.LocalAddr().(*net.TCPAddr).AddrPort()
	c.conn, c.Address = conn, netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
}

// use sends a line and reads the answer.
func (c *client) use(v *round) {
	if c.Failure != "" {
		return
	}
	err := c.conn.SetDeadline(time.Now().Add(v.Within))
	if err == nil {
		_, err = c.conn.Write([]byte{'\n'})
	}
	var name string
	if err == nil {
		name, err = bufio.NewReaderSize(c.conn, 16).ReadString('\n')
	}
	if err != nil {
		c.fail(err)
		return
	}
	c.Endpoint = name[:len(name)-1]
}

func (c *client) fail(err error) {
	c.Failure, c.Error = workload.Kind(err), err.Error()
	c.close()
}

func (c *client) close() {
	if c.conn != nil {
		_ = c.conn.Close()
	}
}
