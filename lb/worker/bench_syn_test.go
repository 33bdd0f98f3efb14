package worker

import (
	"net/netip"
	"runtime"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/ratelimit"
	"github.com/weirlb/weir/lb/table"
)

// BenchmarkSYN measures SYNs of as many clients, accepted and refused for the reasons that
// a client can bring about: no refusal is to cost more than a connection that is made. The
// figure is cpu-ns/SYN, the median of the thread's CPU time over the passes through all
// clients, without the making of packets.
func BenchmarkSYN(b *testing.B) {
	for _, c := range []struct {
		name  string
		set   func(*bench)
		drops []string // the reasons, of which each SYN has one
	}{
		{"accepted", func(*bench) {}, nil},
		{"refused/no-endpoint", func(l *bench) { l.serveAt(table.Pool{}, conntrack.ModeNAT) }, []string{"no-endpoint", "reply-rate-limited"}},
		{"refused/no-local-endpoint", func(l *bench) { l.serveAt(table.Pool{OnEmpty: table.Drop}, conntrack.ModeNAT) }, []string{"no-local-endpoint"}},
		{"refused/source-range", func(l *bench) {
			l.limit(&table.Policy{SourceRanges: []netip.Prefix{netip.MustParsePrefix("45.0.0.0/8")}})
		}, []string{"source-range"}},
		{"refused/connection-limit", func(l *bench) {
			l.limit(&table.Policy{MaxConnections: 1})
			l.establish(1, 1)
		}, []string{"connection-limit"}},
		{"refused/prefix-rate", func(l *bench) {
			l.w.cfg.Prefixes = ratelimit.NewPrefixes([2]uint64{1, 2})
			l.w.cfg.Prefixes.Set(ratelimit.PrefixLimit{PerSecond: 1, Bits4: 1})
		}, []string{"prefix-rate"}},
		{"accepted/prefix-rate", func(l *bench) {
			l.w.cfg.Prefixes = ratelimit.NewPrefixes([2]uint64{1, 2})
			l.w.cfg.Prefixes.Set(ratelimit.PrefixLimit{PerSecond: 1 << 20, Bits4: 24})
		}, nil},
		{"refused/connection-rate", func(l *bench) {
			l.limit(&table.Policy{NewConnectionsPerSecond: 1})
		}, []string{"connection-rate"}},
		{"refused/1-endpoint-without-ports", func(l *bench) { l.exhaust(1) }, []string{"snat-ports-exhausted"}},
		{"refused/8-endpoints-without-ports", func(l *bench) { l.exhaust(8) }, []string{"snat-ports-exhausted"}},
		{"refused/full-table", func(l *bench) { l.fillFlows() }, []string{"flow-table-full"}},
	} {
		b.Run(c.name, func(b *testing.B) {
			l := newBench(b)
			l.round()
			c.set(l)
			frames := make([][]byte, 4096)
			for i := range frames {
				p := request(false, header.ProtoTCP)
				p.src = ap(addr4At(0x2c000001+uint32(i)*4093), uint16(1024+i))
				frames[i] = p.build(b)
			}
			dropped := func() (n uint64) {
				for _, reason := range c.drops {
					n += l.drops()[reason]
				}
				return n
			}
			before := dropped()
			b.ReportAllocs()
			b.ResetTimer()
			var times []float64
			for done := 0; done < b.N; done += len(frames) {
				if len(c.drops) == 0 {
					l.forgetFlows()
				}
				times = append(times, l.timed(frames))
			}
			slices.Sort(times)
			b.ReportMetric(times[len(times)/2], "cpu-ns/SYN")
			l.round()
			// A rate lets some connections begin.
			if got := dropped() - before; len(c.drops) > 0 && got+got/64+64 < uint64(b.N) {
				b.Fatalf("%d of %d are refused: %v", got, b.N, l.drops())
			}
		})
	}
}

// timed gives the worker frames from clients, and returns the CPU time of the rounds per
// frame, in nanoseconds.
func (b *bench) timed(frames [][]byte) float64 {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var spent int64
	for from := 0; from < len(frames); from += batchSize {
		for _, f := range frames[from : from+batchSize] {
			b.give(portClient, f)
		}
		before := threadTime()
		b.w.Round()
		spent += threadTime() - before
		for _, q := range b.q {
			q.Out = q.Out[:0]
		}
	}
	return float64(spent) / float64(len(frames))
}

// threadTime is the CPU time of this thread, in nanoseconds.
func threadTime() int64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		panic(err) // cannot fail
	}
	return t.Nano()
}

func addr4At(n uint32) netip.Addr {
	return netip.AddrFrom4([4]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)})
}

// limit publishes the Service with a policy.
func (b *bench) limit(policy *table.Policy) {
	b.t.Helper()
	s := table.Service{
		Name: "ns/web", Policy: policy,
		Pools:     []table.Pool{{Endpoints: []table.Endpoint{{AddrPort: ap(endpoint4, 8080)}}}},
		Frontends: []table.Frontend{{AddrPort: ap(node4, 80), Proto: header.ProtoTCP, Kind: table.LoadBalancer}},
	}
	if change, err := b.lb.tables.Apply([]table.Service{s}, nil); err != nil || len(change.Errors) > 0 {
		b.t.Fatal(err, change.Errors)
	}
	b.round()
}

// establish makes n TCP connections to each endpoint of the first ones, which last.
func (b *bench) establish(endpoints, n int) {
	b.t.Helper()
	k := table.MakeKey(ap(node4, 80), header.ProtoTCP)
	fe := b.lb.tables.Load().Lookup(&k)
	for i := range endpoints * n {
		f := conntrack.NewFlow{
			Client:   conntrack.MakeKey(ap(addr4At(0x2d000000+uint32(i)), 999), ap(node4, 80), header.ProtoTCP),
			Endpoint: ap(endpointAt(i/n), 8080), ServiceID: fe.ServiceID, Established: true,
			Mode: conntrack.ModeNAT, SNAT: snat4, PortLo: 61000, PortHi: 61000 + uint16(n) - 1, Tick: b.w.tick,
		}
		if _, outcome := b.w.conntrack.Create(&f); outcome != conntrack.Created {
			b.t.Fatalf("connection %d: outcome %d", i, outcome)
		}
	}
}

func endpointAt(i int) netip.Addr { return addr4At(0x0a010005 + uint32(i)) }

// exhaust serves endpoints whose SNAT ports are all in use.
func (b *bench) exhaust(endpoints int) {
	const ports = 256
	var at []netip.Addr
	for i := range endpoints {
		at = append(at, endpointAt(i))
	}
	b.serveAt(table.Pool{}, conntrack.ModeNAT, at...)
	b.fewPorts(ports)
	b.round()
	b.establish(endpoints, ports)
}
