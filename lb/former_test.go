package lb

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/hostveth"
	"github.com/weirlb/weir/lb/steer"
	"github.com/weirlb/weir/lb/table"
)

func frontendOf(service string, port uint16) *table.FrontendEntry {
	a := ap(node4, port)
	return &table.FrontendEntry{Key: table.MakeKey(a, header.ProtoTCP), AddrPort: a, Proto: header.ProtoTCP, ServiceName: service}
}

// A tenant that makes and deletes Services displaces its own former frontends, and of others none.
func TestFormerFrontendsOfANamespaceDisplaceEachOther(t *testing.T) {
	var f formerFrontends
	f.init()
	now := time.Now()
	quiet := frontendOf("quiet/web", 1)
	f.add(quiet, now)
	for i := range maxFormer + 100 {
		e := frontendOf(fmt.Sprintf("busy/%d", i), uint16(2+i))
		if out := f.add(e, now.Add(time.Duration(i))); (out != nil) != (i >= maxFormer-1) || out != nil && out.ServiceName != fmt.Sprintf("busy/%d", i-maxFormer+1) {
			t.Fatalf("frontend %d displaces %+v", i, out)
		}
	}
	if len(f.byKey) != maxFormer || f.byKey[quiet.Key] == nil {
		t.Errorf("%d former frontends, that of another namespace %v", len(f.byKey), f.byKey[quiet.Key])
	}
	f.remove(quiet.Key)
	if len(f.owners) != 1 || len(f.byKey) != maxFormer-1 {
		t.Errorf("%d namespaces, %d former frontends", len(f.owners), len(f.byKey))
	}
}

// former makes a control object with a steering program of two frontends, and a flow table.
func former(t *testing.T) (*LB, *steer.Program) {
	t.Helper()
	l := newControl(t)
	p, err := steer.Load(steer.Config{MaxFrontends: 2})
	if errors.Is(err, unix.EPERM) {
		t.Skip("needs CAP_BPF")
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close(true) })
	l.steer, l.attached, l.host = p, true, &hostveth.Veth{}
	l.unsteered = map[table.Key]*table.FrontendEntry{}
	l.former.init()
	return l, p
}

func steered(t *testing.T, p *steer.Program) map[uint16]bool {
	t.Helper()
	list, err := p.Frontends()
	if err != nil {
		t.Fatal(err)
	}
	out := map[uint16]bool{} // by port, whether for flows only
	for _, f := range list {
		out[f.AddrPort.Port()] = f.Flags&steer.FlowsOnly != 0
	}
	return out
}

// A former frontend makes room for a frontend of a Service, and is the Service's again when that
// claims it.
func TestFormerFrontendsMakeRoom(t *testing.T) {
	l, p := former(t)
	a, b, c := frontendOf("ns/a", 1), frontendOf("ns/b", 2), frontendOf("ns/c", 3)
	for _, f := range []*table.FrontendEntry{a, b} {
		if err := addFrontend(l, f); err != nil {
			t.Fatal(err)
		}
	}
	udp := *frontendOf("ns/u", 4)
	udp.Proto = header.ProtoUDP
	if gone := keepFormer(l, []*table.FrontendEntry{a, b, &udp}); len(gone) != 1 || gone[0] != &udp {
		t.Fatalf("of UDP nothing stays, and no other leaves: %v", gone)
	}
	if got := steered(t, p); len(got) != 2 || !got[1] || !got[2] {
		t.Errorf("steered, for flows only: %v", got)
	}
	if err := addFrontend(l, c); err != nil {
		t.Fatal(err)
	}
	if got := steered(t, p); len(got) != 2 || got[3] || !got[2] {
		t.Errorf("after the Service's: %v", got)
	}
	if err := addFrontend(l, b); err != nil {
		t.Fatal(err)
	}
	if got := steered(t, p); len(got) != 2 || got[2] || len(l.former.byKey) != 0 {
		t.Errorf("claimed again: %v", got)
	}
}

// A former frontend ends with the last connection.
func TestFormerFrontendsEndWithTheirConnections(t *testing.T) {
	l, p := former(t)
	a, b := frontendOf("ns/a", 1), frontendOf("ns/b", 2)
	ref, _ := l.flows.Worker(0).Create(&conntrack.NewFlow{
		Client: conntrack.MakeKey(netip.MustParseAddrPort("192.0.2.9:4000"), a.AddrPort, header.ProtoTCP), Mode: conntrack.ModeNAT,
		Endpoint: netip.MustParseAddrPort("10.0.0.1:80"), SNAT: node4, PortLo: 61000, PortHi: 61010,
	})
	if ref == 0 {
		t.Fatal("no flow")
	}
	keepFormer(l, []*table.FrontendEntry{a, b})
	settleFormer(l) // too early: a worker may still make a connection
	if got := steered(t, p); len(got) != 2 {
		t.Errorf("steered %v", got)
	}
	later := func() {
		for _, x := range l.former.byKey {
			x.since = x.since.Add(-settleTime)
		}
		for k, since := range l.former.datagrams {
			l.former.datagrams[k] = since.Add(-settleTime)
		}
		l.former.look = time.Time{}
	}
	later()
	settleFormer(l)
	if got := steered(t, p); len(got) != 1 || !got[1] {
		t.Errorf("steered %v, want that with a connection", got)
	}
	datagram := *frontendOf("ns/u", 3)
	datagram.Proto = header.ProtoUDP
	datagram.Key = table.MakeKey(datagram.AddrPort, header.ProtoUDP)
	if udp, _ := l.flows.Worker(0).Create(&conntrack.NewFlow{
		Client: conntrack.MakeKey(netip.MustParseAddrPort("192.0.2.9:4000"), datagram.AddrPort, header.ProtoUDP), Mode: conntrack.ModeNAT,
		Endpoint: netip.MustParseAddrPort("10.0.0.1:80"), SNAT: node4, PortLo: 61000, PortHi: 61010,
	}); udp == 0 {
		t.Fatal("no flow")
	}
	keepFormer(l, []*table.FrontendEntry{&datagram})
	later()
	settleFormer(l)
	if n := l.flows.Flows(); n != 1 {
		t.Errorf("%d flows, want that of TCP", n)
	}
	l.flows.Delete(ref)
	later()
	settleFormer(l)
	if got := steered(t, p); len(got) != 0 {
		t.Errorf("steered %v", got)
	}
}
