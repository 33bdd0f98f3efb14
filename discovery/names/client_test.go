package names

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"

	"github.com/weirlb/weir/discovery"
)

// An answer with another ID, to another question or from another address does not count.
func TestForgedAnswers(t *testing.T) {
	other, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	answer := func(q *dns.Msg, addr string) *dns.Msg {
		rr, err := dns.NewRR("a.example. 60 IN A " + addr)
		if err != nil {
			panic(err)
		}
		m := new(dns.Msg).SetReply(q)
		m.Answer = []dns.RR{rr}
		return m
	}
	for name, forge := range map[string]func(dns.ResponseWriter, *dns.Msg){
		"ID": func(w dns.ResponseWriter, m *dns.Msg) {
			m.Id++
			_ = w.WriteMsg(m)
		},
		"source": func(w dns.ResponseWriter, m *dns.Msg) {
			b, _ := m.Pack()
			_, _ = other.WriteTo(b, w.RemoteAddr())
		},
		"no answer": func(w dns.ResponseWriter, m *dns.Msg) {
			m.Response = false
			_ = w.WriteMsg(m)
		},
		"name": func(w dns.ResponseWriter, m *dns.Msg) {
			m.Question[0].Name = "b.example."
			_ = w.WriteMsg(m)
		},
	} {
		t.Run(name, func(t *testing.T) {
			server := serve(t, dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
				forge(w, answer(q.Copy(), "10.6.6.6"))
				_ = w.WriteMsg(answer(q, "10.0.0.1"))
			}))
			c := &client{servers: Server(netip.MustParseAddrPort(server))}
			m, err := c.query(t.Context(), "a.example", dns.TypeA)
			if err != nil {
				if name == "ID" || name == "source" {
					t.Error(err)
				}
				return // an answer without a sense is a fault
			}
			if got, _ := read(m, "a.example", dns.TypeA); fmt.Sprint(got.addrs) != "[10.0.0.1]" {
				t.Errorf("%v", got.addrs)
			}
		})
	}
}

// Without resolv.conf names have a fault, which ends when the file is there.
func TestSystemServers(t *testing.T) {
	file := filepath.Join(t.TempDir(), "resolv.conf")
	synctest.Test(t, func(t *testing.T) {
		servers := SystemServers(file)
		_, err := (&client{servers: servers}).query(t.Context(), "a.example", dns.TypeA)
		if !errors.Is(err, os.ErrNotExist) || !strings.HasPrefix(err.Error(), "no resolver is known: open "+file) {
			t.Errorf("without a file: %v", err)
		}
		for _, row := range []struct{ text, want string }{
			{"nameserver 192.0.2.53\nnameserver 2001:db8::53\n", "[192.0.2.53:53 [2001:db8::53]:53] <nil>"},
			{"search example\n", "[] " + file + ": no nameserver"},
		} {
			if err := os.WriteFile(file, []byte(row.text), 0o644); err != nil {
				t.Fatal(err)
			}
			time.Sleep(readEvery)
			if list, err := servers(); fmt.Sprint(list, " ", err) != row.want {
				t.Errorf("%q: %v, %v", row.text, list, err)
			}
		}
	})
}

// Answers are bounded: chains and loops of aliases end, of too many addresses the lowest are kept.
func TestHostileAnswers(t *testing.T) {
	var long, loop, wide []dns.RR
	for i := range 5000 {
		long = append(long, &dns.CNAME{Hdr: dns.RR_Header{Name: fmt.Sprintf("n%d.example.", i), Rrtype: dns.TypeCNAME, Class: dns.ClassINET}, Target: fmt.Sprintf("n%d.example.", i+1)})
		wide = append(wide, &dns.A{Hdr: dns.RR_Header{Name: "n0.example.", Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 1 << 31}, A: net.IPv4(10, 0, byte(20-i/250), byte(i%250))})
	}
	long = append(long, &dns.A{Hdr: dns.RR_Header{Name: "n5000.example.", Rrtype: dns.TypeA, Class: dns.ClassINET}, A: net.IPv4(10, 0, 0, 1)})
	loop = append(loop, long[0], &dns.CNAME{Hdr: dns.RR_Header{Name: "n1.example.", Rrtype: dns.TypeCNAME, Class: dns.ClassINET}, Target: "N0.example."})
	for name, row := range map[string]struct {
		records []dns.RR
		kept    int
		targets int
	}{"long": {long, 0, 0}, "loop": {loop, 0, 0}, "wide": {wide, maxAddresses + 1, maxAddresses}} {
		m := &dns.Msg{Answer: row.records}
		x := lookup{ttl: maxTTL, ask: func(_ string, kind uint16) (*dns.Msg, error) { return m, nil }}
		out := x.name(discovery.NameQuestion{Host: "n0.example"})
		kept := x.found[records{"n0.example", dns.TypeA}].addrs
		if len(kept) != row.kept || len(out) != row.targets || x.more != (row.targets > 0) || x.ttl > maxTTL {
			t.Errorf("%s: %d kept, %d targets, more %t, %v", name, len(kept), len(out), x.more, x.ttl)
		}
		if len(out) > 0 && out[0].Addr().String() != "10.0.1.0" {
			t.Errorf("%s: the lowest is %v", name, out[0])
		}
	}
}
