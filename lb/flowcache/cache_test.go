package flowcache

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/conntrack"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// bpffs mounts a BPF file system and returns a directory in it that does not exist yet.
func bpffs(t testing.TB) string {
	t.Helper()
	if os.Geteuid() != 0 && os.Getenv("CI") == "" {
		t.Skip("skipped: needs root")
	}
	dir := t.TempDir()
	must(t, unix.Mount("bpf", dir, "bpf", 0, ""))
	t.Cleanup(func() { must(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	return filepath.Join(dir, "weir")
}

// process is what a process has of a flow table.
type process struct {
	*testing.T
	cache *Cache
	flows *conntrack.Table
}

func config(dir string) Config {
	return Config{PinDir: dir, NextHops: 100, Endpoints: 1000, Services: 100}
}

// start starts a process on the state of the last, in directory dir with a file beside it.
func start(t *testing.T, dir string, maxFlows int) *process {
	t.Helper()
	c, err := New(config(dir))
	must(t, err)
	p := &process{t, c, nil}
	p.flows, err = conntrack.Open(conntrack.Config{
		Path: filepath.Join(filepath.Dir(dir)+".flows", "table"), MaxFlows: maxFlows, Workers: 1,
		MaxEndpoints: 1000, Memory: c, NextHops: 100,
	})
	must(t, err)
	if err := p.flows.Restoration().MemoryErr; err != nil {
		t.Fatal(err)
	}
	must(t, c.SetTable(p.flows))
	return p
}

// end ends it as a kill would: nothing but file, pins and memory stays.
func (p *process) end() {
	p.Helper()
	must(p.T, p.flows.Close())
	must(p.T, p.cache.Close())
}

// create makes n UDP flows from client ports from first on.
func (p *process) create(first, n int) {
	p.Helper()
	w := p.flows.Worker(0)
	w.Online()
	defer w.Offline()
	for i := range n {
		_, outcome := w.Create(&conntrack.NewFlow{
			Client:   key(first + i),
			Endpoint: netip.MustParseAddrPort("198.51.100.1:53"), EndpointID: 3, ServiceID: 4,
			Mode: conntrack.ModeDNAT, Tick: p.flows.Tick(),
		})
		if outcome != conntrack.Created {
			p.Fatalf("create: outcome %d", outcome)
		}
	}
}

func key(i int) conntrack.Key {
	return conntrack.MakeKey(netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, 1}), uint16(1024+i)),
		netip.MustParseAddrPort("203.0.113.1:53"), conntrack.ProtoUDP)
}

func (p *process) checkFlows(n int) {
	p.Helper()
	got := 0
	p.flows.Range(func(conntrack.Ref) bool { got++; return true })
	if got != n {
		p.Errorf("%d flows, want %d", got, n)
	}
}

// The program finds a flow by the state and the maps alone.
func TestTheKernelReadsTheTable(t *testing.T) {
	p := start(t, bpffs(t), 2000)
	defer p.end()
	p.create(0, 50)
	maps := p.cache.Maps()
	for name, m := range maps {
		if m == nil {
			t.Fatalf("no map %s", name)
		}
	}
	var s State
	must(t, maps["flow_state"].Lookup(uint32(0), &s))
	if s.Seed != p.flows.Seed() || maps["flow_index"].MaxEntries() != s.Buckets || s.From != 0 {
		t.Errorf("state %+v", s)
	}
	for i := range 50 {
		k := key(i)
		w := p.flows.Worker(0)
		w.Online()
		r := w.Lookup(p.flows.Hash(&k), &k)
		w.Offline()
		var cell [8]uint64
		must(t, maps["flow_table"].Lookup(s.EntriesAt+uint32(r)-1, &cell))
		if got := (*conntrack.Entry)(unsafe.Pointer(&cell)); *got != *p.flows.Entry(r) {
			t.Fatalf("entry %+v, want %+v", got, p.flows.Entry(r))
		}
		must(t, maps["flow_table"].Lookup(s.ConnsAt+r.Conn()/2, &cell))
		if got := (*[2]conntrack.Conn)(unsafe.Pointer(&cell))[r.Conn()%2]; got.EndpointID != 3 || got.ServiceID != 4 {
			t.Fatalf("connection %+v", got)
		}
	}
	// The program's clock may be a tick ahead, or behind: the two have their ticks at different times.
	least, tick, most := tickByState(t, &s)-1, int64(p.flows.Tick()), tickByState(t, &s)+1
	if tick < least || tick > most {
		t.Errorf("tick %d, by the state it is %d to %d", tick, least, most)
	}
}

// tickByState is the tick as the program has it.
func tickByState(t *testing.T, s *State) int64 {
	return (clock(t) - int64(s.Tick0)) / (int64(time.Second) / conntrack.TicksPerSecond)
}

func clock(t *testing.T) int64 {
	now, err := monotonic()
	must(t, err)
	return now
}

func TestTheKernelGivesNoMemory(t *testing.T) {
	cfg := config("")
	cfg.NextHops = 1 << 31 // 128 GB
	if _, err := New(cfg); err == nil {
		t.Error("a map of 128 GB was made")
	}
	c, err := New(config(""))
	must(t, err)
	defer c.Close()
	if _, err := c.Table(1 << 40); err == nil {
		t.Error("a table of a terabyte was made")
	}
	path := filepath.Join(t.TempDir(), "flows")
	flows, err := conntrack.Open(conntrack.Config{Path: path, MaxFlows: 2000, Workers: 1, Memory: refusing{c}})
	must(t, err)
	defer flows.Close()
	if a := flows.Restoration(); !errors.Is(a.MemoryErr, unix.ENOMEM) {
		t.Errorf("restoration %+v", a)
	}
	if err := c.SetTable(flows); err == nil {
		t.Error("a table in a file is the cache's")
	}
}

// refusing is a Cache for whose table there is no memory.
type refusing struct{ *Cache }

func (refusing) Table(int64) ([]byte, error) { return nil, unix.ENOMEM }

func TestExceptionsAreSeenByTheKernel(t *testing.T) {
	c, err := New(config(""))
	must(t, err)
	defer c.Close()
	bit := func(at, n uint32) bool {
		var word uint64
		must(t, c.gone.m.Lookup(at+n/64, &word))
		return word>>(n%64)&1 != 0
	}
	count := func() uint32 {
		var s State
		must(t, c.states.m.Lookup(uint32(0), &s))
		if s.ServicesAt != c.firstService {
			t.Errorf("Services begin at %d", s.ServicesAt)
		}
		return s.Exceptions
	}
	for range 2 {
		c.SetEndpointRemoved(77, true)
		c.SetServiceRemoved(99, true)
		c.SetEndpointRemoved(999, true)
		c.SetEndpointRemoved(conntrack.NoID, true)
	}
	if !bit(0, 77) || !bit(0, 999) || !bit(c.firstService, 99) || bit(c.firstService, 77) || count() != 3 {
		t.Errorf("%d exceptions", count())
	}
	c.SetEndpointRemoved(77, false)
	c.SetEndpointRemoved(78, false)
	c.SetServiceRemoved(99, false)
	c.SetEndpointRemoved(999, false)
	if bit(0, 77) || bit(0, 999) || bit(c.firstService, 99) || count() != 0 {
		t.Errorf("%d exceptions", count())
	}
	c.SetOn(true)
	c.Suspend()
	c.Suspend()
	c.Resume()
	first := c.state.From
	if now := clock(t); first < uint64(now) || first > uint64(now+suspendedFor.Nanoseconds()) {
		t.Error("the cache is on while it is suspended, or will not be when the process has died")
	}
	if c.Renew(); c.state.From <= first {
		t.Error("the suspension is not renewed")
	}
	c.Resume()
	if c.state.From != 1 {
		t.Error("the cache is off after it was suspended")
	}
	if c.Renew(); c.state.From != 1 {
		t.Error("the cache is off without a suspension")
	}
	c.SetEndpointRemoved(1000, true)
	if c.state.From != 0 {
		t.Error("the cache is on without a bit for an endpoint that is gone")
	}
}

// A capture that has not ended when the process leaves does not keep packets from the kernel.
func TestLeavingEndsSuspension(t *testing.T) {
	c, err := New(config(""))
	must(t, err)
	defer c.Close()
	c.SetOn(true)
	c.Suspend()
	c.Leave()
	if c.state.From != 1 {
		t.Errorf("from %d after the process has left", c.state.From)
	}
	c.Resume()
	if c.state.From != 1 {
		t.Errorf("from %d after the capture has ended", c.state.From)
	}
}

func TestPortsAreSeenByTheKernel(t *testing.T) {
	c, err := New(config(""))
	must(t, err)
	defer c.Close()
	want := Port{IfIndex: 70000, Flags: PortXDP | PortXDPFrag, VLAN: 12}
	must(t, c.SetPort(63, want))
	must(t, c.SetUp(63, 8))
	c.SetOn(true)
	if c.SetPort(64, want) == nil || c.SetPort(-1, want) == nil || c.SetUp(64, 1) == nil {
		t.Error("a port out of range was set")
	}
	var s State
	must(t, c.states.m.Lookup(uint32(0), &s))
	if s.Ports[63] != want || s.Slots[63].Up != 8 || s.From != 1 {
		t.Errorf("state %+v", s)
	}
	if r, err := c.Repeated(63); r != (Repeated{}) || err != nil {
		t.Errorf("repeated %v, %v", r, err)
	}
	if _, err := c.Repeated(64); err == nil {
		t.Error("a slot out of range has counters")
	}
}
