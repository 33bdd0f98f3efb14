package names

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"

	"github.com/weirlb/weir/discovery"
	"github.com/weirlb/weir/perf/netlab/patience"
)

// zone answers from records in the text of a zone file.
type zone struct {
	mu      sync.Mutex
	records []string
	rcode   int
	asked   int
	silent  bool
	failing uint16 // questions of this kind fail
}

func (z *zone) set(rcode int, records ...string) {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.rcode, z.records, z.silent = rcode, records, false
}

// fail has questions of a type fail, 0: none.
func (z *zone) fail(kind uint16) {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.failing = kind
}

// ServeDNS implements dns.Handler. Answers by UDP with more than ten records are cut short.
func (z *zone) ServeDNS(w dns.ResponseWriter, q *dns.Msg) {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.asked++
	if z.silent {
		return
	}
	m := z.answer(q)
	if _, udp := w.RemoteAddr().(*net.UDPAddr); udp && len(m.Answer) > 10 {
		m.Answer, m.Truncated = nil, true
	}
	_ = w.WriteMsg(m)
}

func (z *zone) answer(q *dns.Msg) *dns.Msg {
	m := new(dns.Msg).SetRcode(q, z.rcode)
	for _, text := range z.records {
		rr, err := dns.NewRR(text)
		if err != nil {
			panic(err)
		}
		if t := rr.Header().Rrtype; t == q.Question[0].Qtype || t == dns.TypeCNAME {
			if t == dns.TypeCNAME || rr.Header().Name == q.Question[0].Name || slices.ContainsFunc(z.records, func(s string) bool { return strings.HasSuffix(s, "CNAME "+rr.Header().Name) }) {
				m.Answer = append(m.Answer, rr)
			}
		}
	}
	return m
}

// serve has a zone answered on the loopback interface by UDP and TCP.
func serve(t *testing.T, z dns.Handler) string {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", conn.LocalAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []*dns.Server{{PacketConn: conn, Handler: z}, {Listener: l, Handler: z}} {
		ready := make(chan struct{})
		s.NotifyStartedFunc = func() { close(ready) }
		go func() { _ = s.ActivateAndServe() }()
		<-ready
		t.Cleanup(func() { _ = s.Shutdown() })
	}
	return conn.LocalAddr().String()
}

func slice(name string) discovery.ServiceName {
	namespace, name, _ := strings.Cut(name, "/")
	return discovery.ServiceName{Namespace: namespace, Name: name}
}

func host(h string) discovery.NameQuestion { return discovery.NameQuestion{Host: h} }

// Answers of a real server by UDP and TCP, from the second resolver where the first is silent.
func TestAnswers(t *testing.T) {
	var many []string
	for i := range 100 {
		many = append(many, fmt.Sprintf("many.example. 60 IN A 10.1.0.%d", i+1))
	}
	server := serve(t, &zone{records: append(many,
		"a.example. 60 IN A 10.0.0.2", "a.example. 60 IN A 10.0.0.1", "a.example. 60 IN A 10.0.0.2", "a.example. 60 IN AAAA fd00::1",
		"alias.example. 60 IN CNAME a.example.", "own.example. 60 IN A 10.9.9.9",
		"_http._tcp.web.example. 60 IN SRV 1 5 8080 a.example.", "_http._tcp.web.example. 60 IN SRV 1 0 8081 a.example.", "_http._tcp.web.example. 60 IN SRV 2 0 9999 own.example.",
		"_none._tcp.web.example. 60 IN SRV 0 0 0 .")})
	dead, err := net.ListenPacket("udp", "127.0.0.1:0") // refuses as soon as it is closed
	if err != nil {
		t.Fatal(err)
	}
	dead.Close()
	r := New(Config{Servers: func() ([]string, error) { return []string{dead.LocalAddr().String(), server}, nil },
		Own: func() []netip.Addr { return []netip.Addr{netip.MustParseAddr("10.9.9.9")} }, Changed: func() {}})
	questions := map[discovery.NameQuestion]string{
		host("a.example"):                            "[10.0.0.1:0 10.0.0.2:0 [fd00::1]:0] []",
		host("own.example"):                          "[] [10.9.9.9 is refused: it is an address of this node]",
		host("nobody.exampl"):                        "[] [it has no address]",
		{Host: "web.example", Service: "_http._tcp"}: "[10.0.0.1:8080 10.0.0.1:8081 10.0.0.2:8080 10.0.0.2:8081 [fd00::1]:8080 [fd00::1]:8081] []",
		{Host: "web.example", Service: "_none._tcp"}: "[] [it has no address]",
	}
	var list []discovery.NameQuestion
	for q := range questions {
		list = append(list, q)
	}
	r.Follow(slice("ns/web"), append(list, host("many.example")))
	ctx, cancel := context.WithCancel(t.Context())
	var ended sync.WaitGroup
	ended.Go(func() { r.Run(ctx) })
	for limit := time.Now().Add(patience.For(20 * time.Second)); time.Now().Before(limit); time.Sleep(time.Millisecond) {
		r.mu.Lock()
		waits := slices.ContainsFunc(list, func(q discovery.NameQuestion) bool { return !r.names[key{"ns", q}].asked })
		waits = waits || !r.names[key{"ns", host("many.example")}].asked
		r.mu.Unlock()
		if !waits {
			break
		}
	}
	for q, want := range questions {
		if a := r.Answer("ns", q); fmt.Sprint(a.Targets, " ", a.Faults) != want {
			t.Errorf("%s: %v %q, want %s", q, a.Targets, a.Faults, want)
		}
	}
	if a := r.Answer("ns", host("many.example")); len(a.Targets) != maxAddresses || len(a.Faults) != 1 {
		t.Errorf("%d targets, %q", len(a.Targets), a.Faults)
	}
	if a := r.Answer("other", host("a.example")); len(a.Targets) > 0 {
		t.Errorf("an answer of another namespace: %v", a)
	}
	cancel()
	ended.Wait()
}

// inFalseTime runs a Resolver in false time on a zone.
func inFalseTime(t *testing.T, z *zone, f func(*Resolver)) {
	synctest.Test(t, func(*testing.T) { onZone(z, nil, f) })
}

// onZone runs a Resolver on a zone, with answers of the process before.
func onZone(z *zone, kept []Kept, f func(*Resolver)) {
	r := New(Config{Changed: func() {}, Kept: kept})
	r.query = func(_ context.Context, host string, kind uint16) (*dns.Msg, error) {
		z.mu.Lock()
		defer z.mu.Unlock()
		z.asked++
		if z.rcode == dns.RcodeServerFailure || z.failing == kind {
			return nil, fmt.Errorf("SERVFAIL")
		}
		return z.answer(new(dns.Msg).SetQuestion(dns.Fqdn(host), kind)), nil
	}
	ctx, cancel := context.WithCancel(context.Background())
	var ended sync.WaitGroup
	ended.Go(func() { r.Run(ctx) })
	f(r)
	cancel()
	ended.Wait()
}

// An answer changes with its time to live. A resolver that fails takes none away, and a name that is gone
// only after a while.
func TestLastAnswersAreKept(t *testing.T) {
	z := &zone{records: []string{"a.example. 20 IN A 10.0.0.1"}}
	inFalseTime(t, z, func(r *Resolver) {
		expect := func(when, want, fault string) {
			t.Helper()
			a := r.Answer("ns", host("a.example"))
			if got := fmt.Sprint(a.Targets); got != want || strings.Join(a.Faults, "; ") != fault {
				t.Errorf("%s: %s %q, want %s %q", when, got, a.Faults, want, fault)
			}
		}
		r.Follow(slice("ns/web"), []discovery.NameQuestion{host("a.example")})
		if r.Settle(); !r.Settle() {
			t.Error("no start goes on")
		}
		expect("at first", "[10.0.0.1:0]", "")
		z.set(0, "a.example. 20 IN A 10.0.0.2")
		time.Sleep(19 * time.Second)
		expect("it lives", "[10.0.0.1:0]", "")
		time.Sleep(2 * time.Second)
		expect("after its time", "[10.0.0.2:0]", "")
		if r.Settle() {
			t.Error("a start goes on without end")
		}
		z.set(dns.RcodeServerFailure)
		time.Sleep(time.Hour)
		expect("the resolver fails", "[10.0.0.2:0]", "SERVFAIL; the last answer is kept")
		z.mu.Lock()
		if z.asked > 140 {
			t.Errorf("%d questions in an hour without answers", z.asked)
		}
		z.mu.Unlock()
		z.set(0, "a.example. 0 IN A 10.0.0.3")
		time.Sleep(maxRetry)
		expect("it answers again", "[10.0.0.3:0]", "")
		z.set(0, "a.example. 0 IN A 127.0.0.1", "a.example. 0 IN A 0.0.0.0")
		time.Sleep(time.Hour)
		expect("a resolver that forges answers", "[10.0.0.3:0]", "the last answer is kept: all addresses of this one are refused; "+
			"0.0.0.0 is refused: may not be unspecified (0.0.0.0); 127.0.0.1 is refused: may not be in the loopback range (127.0.0.0/8, ::1/128)")
		z.set(0, "a.example. 0 IN A 10.0.0.3", "a.example. 0 IN A 127.0.0.1")
		time.Sleep(minTTL + time.Second)
		expect("one is refused", "[10.0.0.3:0]", "127.0.0.1 is refused: may not be in the loopback range (127.0.0.0/8, ::1/128)")
		z.set(dns.RcodeNameError)
		time.Sleep(minTTL + time.Second)
		expect("the name is gone", "[10.0.0.3:0]", "it has no address any more; the last answer is kept for 30s")
		time.Sleep(holdEmpty + minTTL)
		expect("it stays so", "[]", "it has no address")
		r.Follow(slice("ns/web"), nil)
		time.Sleep(time.Second)
		if len(r.names)+len(r.shares)+len(r.slices)+r.count > 0 {
			t.Errorf("left: %v %v %v %d", r.names, r.shares, r.slices, r.count)
		}
	})
}

// A namespace that asks for many names, whose answers hold for no time, leaves room and queries to others,
// and room comes back.
func TestNamesAreBounded(t *testing.T) {
	z := &zone{records: []string{"a.example. 0 IN A 10.0.0.1"}}
	inFalseTime(t, z, func(r *Resolver) {
		synctest.Wait()
		for n := range 12 {
			var many []discovery.NameQuestion
			for i := range maxOfNamespace + 10 {
				many = append(many, host(fmt.Sprintf("n%d.example", i)))
			}
			r.Follow(slice(fmt.Sprintf("attacker%d/web", n)), many)
		}
		if r.count >= maxNames {
			t.Errorf("%d names", r.count)
		}
		if a := r.Answer("attacker0", host(fmt.Sprintf("n%d.example", maxOfNamespace))); len(a.Faults) != 1 || !strings.Contains(a.Faults[0], "it is not resolved") {
			t.Errorf("%+v", a)
		}
		z.mu.Lock()
		before := z.asked
		z.mu.Unlock()
		time.Sleep(100 * time.Second)
		z.mu.Lock()
		if n := z.asked - before; n > 100*perSecond+perSecond {
			t.Errorf("%d queries in 100 s", n)
		}
		z.mu.Unlock()
		r.Follow(slice("ns/web"), []discovery.NameQuestion{host("a.example")})
		time.Sleep(time.Minute)
		if a := r.Answer("ns", host("a.example")); len(a.Targets) != 1 {
			t.Errorf("another namespace: %+v", a)
		}
		r.Follow(slice("attacker0/other"), []discovery.NameQuestion{host("a.example")})
		r.Follow(slice("attacker0/web"), nil)
		time.Sleep(time.Minute)
		if a := r.Answer("attacker0", host("a.example")); len(a.Targets) != 1 || r.shares["attacker0"].names != 1 {
			t.Errorf("after names have ended: %+v", a)
		}
	})
}

// Whoever removes names and asks again has no more queries than otherwise.
func TestTheLimitOfANamespaceStays(t *testing.T) {
	z := &zone{records: []string{"a.example. 60 IN A 10.0.0.1"}}
	inFalseTime(t, z, func(r *Resolver) {
		synctest.Wait()
		var many []discovery.NameQuestion
		for i := range maxOfNamespace {
			many = append(many, host(fmt.Sprintf("n%d.example", i)))
		}
		const seconds = 10
		for range 10 * seconds {
			r.Follow(slice("ns/web"), many)
			time.Sleep(50 * time.Millisecond)
			r.Follow(slice("ns/web"), nil)
			time.Sleep(50 * time.Millisecond)
		}
		z.mu.Lock()
		if most := seconds*perNamespace + 2*perNamespace; z.asked > most || z.asked < most/2 {
			t.Errorf("%d queries in %d s, want at most %d", z.asked, seconds, most)
		}
		z.mu.Unlock()
		time.Sleep(5 * time.Second)
		r.mu.Lock()
		defer r.mu.Unlock()
		if len(r.shares) > 0 {
			t.Errorf("left: %v", r.shares)
		}
	})
}

// FuzzRead holds answers of any server to the rules of a lookup: bounded, valid, and not endless.
func FuzzRead(f *testing.F) {
	for _, text := range []string{"a.example. 60 IN A 10.0.0.2", "a.example. 60 IN CNAME a.example.", "a.example. 60 IN SRV 1 5 8080 b.example.", "a.example. 60 IN AAAA ::ffff:10.0.0.1"} {
		m := new(dns.Msg).SetQuestion("a.example.", dns.TypeA)
		rr, err := dns.NewRR(text)
		if err != nil {
			f.Fatal(err)
		}
		m.Answer = append(m.Answer, rr)
		data, err := m.Pack()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		m := new(dns.Msg)
		if m.Unpack(data) != nil {
			return
		}
		for _, q := range []discovery.NameQuestion{host("a.example"), {Host: "example", Service: "a"}} {
			asked := 0
			x := lookup{ttl: maxTTL, ask: func(string, uint16) (*dns.Msg, error) { asked++; return m, nil }}
			out := x.name(q)
			if len(out) > maxAddresses || asked > 1+2*maxRecords || x.ttl < 0 || x.ttl > maxTTL || !slices.IsSortedFunc(out, netip.AddrPort.Compare) {
				t.Fatalf("%v, %d questions, %v", out, asked, x.ttl)
			}
			for _, a := range out {
				if !a.Addr().IsValid() || a.Addr().Is4In6() || (q.Service == "") != (a.Port() == 0) {
					t.Fatalf("%v", a)
				}
			}
		}
	})
}
