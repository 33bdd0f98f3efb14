package e2e

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/perf/netlab"
	"github.com/weirlb/weir/perf/netlab/labtest"
	"github.com/weirlb/weir/perf/netlab/weirtest"
)

// BenchmarkDeniedFlood measures the CPU time that a SYN costs the node, without the sending of it: a SYN that the
// packet loop refuses, without deny lists, and a SYN of a client on a list of 1,000,000 prefixes. Each comes from another
// source. At hook tcx, the default on a veth, a packet passes another veth pair to the packet loop, and the program
// drops it before.
//
//	go test -run '^$' -bench DeniedFlood -benchtime 1x ./cmd/weir/e2e
func BenchmarkDeniedFlood(b *testing.B) {
	labtest.Require(b)
	for _, hook := range []string{"xdp", "tcx"} {
		deniedFlood(b, hook)
	}
}

func deniedFlood(b *testing.B, hook string) {
	check := func(err error) {
		b.Helper()
		if err != nil {
			b.Fatal(err)
		}
	}
	f, err := newFixture(weirtest.Binary(b), options{services: []service{toNoLocal}, stopped: true,
		interfaces: fmt.Sprintf("[{name: eth0, hook: %s}, {name: eth1, hook: %[1]s}]", hook)})
	check(err)
	defer f.Close()
	config := f.config() + fmt.Sprintf("denyLists: [{name: all, file: %s}]\n", f.path("list"))
	check(os.WriteFile(f.path("config.yaml"), []byte(config), 0o644))
	check(os.WriteFile(f.path("list"), nil, 0o644))
	check(f.start())
	check(f.Client.Netlink().LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "sink"}}))
	sink, err := f.Client.Interface("sink")
	check(err)
	check(f.Client.Netlink().LinkSetUp(sink))
	nowhere, err := netlab.NewTap(f.Client, "sink")
	check(err)
	defer nowhere.Close()
	wire, err := netlab.NewTap(f.Client, "eth0")
	check(err)
	defer wire.Close()
	rng := rand.New(rand.NewPCG(1, 2))
	for _, six := range []bool{false, true} {
		frames, list := floodOfMany(b, f, rng, six)
		deny := func(text []byte, n int) {
			check(os.WriteFile(f.path("list"), text, 0o644))
			check(f.poll(func(ctx context.Context) error {
				s, err := f.admin.Status(ctx)
				if err == nil && s.DenyLists[0].Prefixes != n {
					err = fmt.Errorf("%d prefixes", s.DenyLists[0].Prefixes)
				}
				return err
			}))
		}
		count := func(of func(*api.Status) uint64) uint64 {
			ctx, cancel := context.WithTimeout(context.Background(), within)
			defer cancel()
			s, err := f.admin.Status(ctx)
			check(err)
			return of(s)
		}
		// Of the frames at least nine tenths must have ended so: what is lost before costs little.
		cost := func(of func(*api.Status) uint64) float64 {
			before := count(of)
			ns := f.floodCost(b, wire, frames) - f.floodCost(b, nowhere, frames)
			if n := count(of) - before; n < uint64(len(frames))*9/10 {
				b.Errorf("hook %s, IPv6 %v: %d of %d SYNs are counted", hook, six, n, len(frames))
			}
			return ns
		}
		var refused, denied []float64
		for range 3 {
			refused = append(refused, cost(func(s *api.Status) uint64 { return s.Drops["no-local-endpoint"] }))
		}
		deny(list, 1_000_000)
		for range 3 {
			denied = append(denied, cost(func(s *api.Status) uint64 { return s.DenyLists[0].Packets }))
		}
		deny(nil, 0)
		slices.Sort(refused)
		slices.Sort(denied)
		fmt.Printf("hook %s, IPv6 %v: refused %.0f (%.0f - %.0f) ns, denied %.0f (%.0f - %.0f) ns, ratio %.2f\n", hook, six,
			refused[1], refused[0], refused[2], denied[1], denied[0], denied[2], denied[1]/refused[1])
	}
}

// floodOfMany are SYNs to a Service without an endpoint, from as many prefixes, and a list that has those and more.
func floodOfMany(b *testing.B, f *fixture, rng *rand.Rand, six bool) (frames [][]byte, list []byte) {
	s := &synFlood{to: toNoLocal.at(echoPort, six)}
	for i, n := range []*netlab.Namespace{f.Edge.Edge, f.Client} {
		l, err := n.Interface("eth0")
		if err != nil {
			b.Fatal(err)
		}
		copy(s.macs[6*i:], l.Attrs().HardwareAddr)
	}
	var text bytes.Buffer
	seen := map[netip.Prefix]bool{}
	for len(seen) < 1_000_000 {
		a := netip.AddrFrom4([4]byte{byte(20 + rng.IntN(80)), byte(rng.Uint32()), byte(rng.Uint32()), byte(rng.Uint32())})
		p, _ := a.Prefix(24)
		if six {
			x := forgedSource(rng, true).As16()
			x[0], x[1], x[2], x[3], x[4], x[5] = 0x2a, byte(rng.Uint32()), byte(rng.Uint32()), byte(rng.Uint32()), byte(rng.Uint32()), byte(rng.Uint32())
			a = netip.AddrFrom16(x)
			p, _ = a.Prefix(64)
		}
		if seen[p] {
			continue
		}
		seen[p] = true
		fmt.Fprintln(&text, p)
		if len(seen)%16 == 0 {
			s.from = func(*rand.Rand, bool) netip.Addr { return a }
			frames = append(frames, s.packet(rng))
		}
	}
	return frames, text.Bytes()
}

// floodCost sends the frames once, in bursts, and is the CPU time of this thread and of Weir per frame, in ns.
// Without CONFIG_IRQ_TIME_ACCOUNTING a thread's time has that of the interrupts that it raises, as of a veth's.
func (f *fixture) floodCost(b *testing.B, to *netlab.Tap, frames [][]byte) float64 {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	thread := func() int64 {
		var t unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
			b.Fatal(err)
		}
		return t.Nano()
	}
	before, weir := thread(), cpuOf(b, f.weir.Cmd.Process.Pid)
	for i, frame := range frames {
		if err := to.Send(frame); err != nil {
			b.Fatal(err)
		}
		if i%64 == 63 {
			time.Sleep(200 * time.Microsecond)
		}
	}
	spent := thread() - before
	time.Sleep(50 * time.Millisecond)
	return float64(spent+cpuOf(b, f.weir.Cmd.Process.Pid)-weir) / float64(len(frames))
}

// cpuOf is the CPU time of a process, in ns.
func cpuOf(b *testing.B, pid int) (sum int64) {
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	if err != nil {
		b.Fatal(err)
	}
	for _, task := range tasks {
		var ns int64
		if text, err := os.ReadFile(task); err == nil { // a thread may end
			if _, err := fmt.Sscan(string(text), &ns); err != nil {
				b.Fatal(err)
			}
		}
		sum += ns
	}
	return sum
}
