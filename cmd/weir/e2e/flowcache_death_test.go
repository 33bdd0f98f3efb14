package e2e

import (
	"context"
	"fmt"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/weirlb/weir/cmd/weir/api"
)

// asFromWire are the settings of a host whose packets look as if they came by a wire, with
// whole checksums, and to whose veth an XDP program can send, because the peer polls.
var asFromWire = map[string]bool{"rx-gro": true, "tx-checksum-ip-generic": false}

// hooks are the two at which the kernel forwards established flows.
var hooks = []string{"xdp", "tcx"}

// cachedFixture is a fixture in which the kernel forwards established flows at a hook.
func cachedFixture(t *testing.T, hook string, o options) *fixture {
	t.Helper()
	o.interfaces = fmt.Sprintf("[{name: eth0, hook: %s}, {name: eth1, hook: %s}]", hook, hook)
	o.extra += "flowCache: {mode: auto}\n"
	o.stopped = true
	f := ownFixture(t, o)
	if hook == "xdp" {
		must(t, f.Client.SetOffloads("eth0", asFromWire))
		must(t, f.Fabric.SetOffloads("edge", map[string]bool{"rx-gro": true}))
		must(t, f.ZoneA.SetOffloads("eth0", asFromWire))
	}
	must(t, f.start())
	return f
}

// Established connections to an attached interface do not notice that Weir is gone for a
// second: the kernel forwards their packets meanwhile, and no packet of theirs is lost. New
// connections in this second succeed when the client sends the SYN again.
func TestWireCachedConnectionsDoNotNoticeAKill(t *testing.T) {
	for _, hook := range hooks {
		for _, end := range []struct {
			name, config string
			how          func(*testing.T, *fixture) error
		}{
			{"kill", "", func(_ *testing.T, f *fixture) error { return f.weir.Kill() }},
			{"SIGUSR2", "", func(t *testing.T, f *fixture) error { return endedBy(t, f, syscall.SIGUSR2) }},
			{"SIGTERM", "onStop: leave\n", func(t *testing.T, f *fixture) error { return endedBy(t, f, syscall.SIGTERM) }},
		} {
			t.Run(hook+"/"+end.name, func(t *testing.T) {
				f := cachedFixture(t, hook, options{services: []service{toAttached}, extra: end.config})
				cachedConnectionsOutlive(t, f, func() error { return end.how(t, f) })
			})
		}
	}
}

func endedBy(t *testing.T, f *fixture, signal syscall.Signal) error {
	if err := f.weir.Signal(signal); err != nil {
		return err
	}
	f.ended(t)
	return nil
}

// cachedConnectionsOutlive runs connections while end ends Weir again and again.
func cachedConnectionsOutlive(t *testing.T, f *fixture, end func() error) {
	t.Helper()
	const connections = 50
	var talks []*talk
	for i := range connections {
		c, err := f.Client.DialContext(inTime(t, within), "tcp", toAttached.at(echoPort, i%2 == 1).String())
		must(t, err)
		defer c.Close()
		talks = append(talks, &talk{conn: c, name: fmt.Sprint("connection ", i), every: 10 * time.Millisecond})
	}
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	for _, k := range talks {
		running.Go(func() { k.run(ctx) })
	}
	for range kills {
		f.repeatsAll(t, talks)
		lost, err := f.segmentsLost()
		must(t, err)
		must(t, end())
		saidBy(t, talks, 50) // half a second
		again, err := f.segmentsLost()
		must(t, err)
		if again != lost {
			t.Errorf("without Weir: %d segments were sent again, or reset a connection", again-lost)
		}
		fresh := make(chan error, 1)
		go func() { fresh <- f.exchangeOnce(toAttached, false) }()
		saidBy(t, talks, 50)
		must(t, f.start())
		saidBy(t, talks, 50)
		if err := <-fresh; err != nil {
			t.Errorf("new connection: %v", err)
		}
		if again, err = f.segmentsLost(); again != lost {
			t.Errorf("with the next Weir: %d segments were sent again, or reset a connection (%v)", again-lost, err)
			t.Log(f.whatWasDropped())
		}
	}
	stop()
	running.Wait()
	var longest time.Duration
	for _, k := range talks {
		longest = max(longest, time.Duration(k.longest.Load()))
		if k.err != nil {
			t.Errorf("%s: after %d exchanges: %v", k.name, k.said.Load(), k.err)
		}
	}
	t.Logf("%d connections over %d ends: longest pause %v", connections, kills, longest)
}

// segmentsLost counts the segments that client and endpoint have sent again, because they were
// lost, and those that reset connections. SYNs are left out.
func (f *fixture) segmentsLost() (n int64, err error) {
	for _, at := range f.Namespaces() {
		if at != f.Client && at != f.ZoneA {
			continue
		}
		c, err := at.Counters()
		if err != nil {
			return 0, err
		}
		n += int64(c["TcpOutRsts"] + c["TcpEstabResets"] + c["TcpRetransSegs"] - c["TcpExtTCPSynRetrans"])
		n -= int64(c["TcpExtTCPDSACKRecv"]) // the receiver had them: only the machine was slow
	}
	return n, nil
}

// repeatsAll waits until no packet of the connections reaches the packet loop.
func (f *fixture) repeatsAll(t *testing.T, talks []*talk) {
	t.Helper()
	var before, now [2]api.Repeated
	look := func(to *[2]api.Repeated) error {
		s, err := f.admin.Status(inTime(t, within))
		if err != nil {
			return err
		}
		for i, name := range []string{"eth0", "eth1"} {
			r := interfaceOf(s, name).Repeated
			if r == nil {
				return fmt.Errorf("%s: the kernel forwards nothing", name)
			}
			to[i] = *r
		}
		return nil
	}
	must(t, f.poll(func(context.Context) error {
		if err := look(&before); err != nil {
			return err
		}
		saidBy(t, talks, 5)
		if err := look(&now); err != nil {
			return err
		}
		for i := range now {
			if n := now[i].Steered - before[i].Steered; n > 0 {
				return fmt.Errorf("eth%d: %d packets reach the packet loop, %d do not", i, n, now[i].Packets-before[i].Packets)
			}
		}
		return nil
	}))
}
