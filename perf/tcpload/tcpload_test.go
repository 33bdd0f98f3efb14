package tcpload

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/weirlb/weir/perf/netlab"
	"github.com/weirlb/weir/perf/netlab/labtest"
)

// pair is a client and a server with a link between them.
func pair(t *testing.T) (client, server *netlab.Namespace) {
	t.Helper()
	labtest.Require(t)
	lab, err := netlab.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { lab.Close() })
	var ns [2]*netlab.Namespace
	var ends [2]netlab.End
	for i, name := range []string{"client", "server"} {
		if ns[i], err = lab.Namespace(name); err != nil {
			t.Fatal(err)
		}
		ends[i] = netlab.End{Namespace: ns[i], Name: "eth0", Addrs: []netip.Prefix{netip.PrefixFrom(netlab.Host4(10, uint8(i+1)), 24)}}
	}
	if err := netlab.Connect(ends[0], ends[1], netlab.LinkConfig{}); err != nil {
		t.Fatal(err)
	}
	return ns[0], ns[1]
}

func load(client *netlab.Namespace) *Load {
	return &Load{Namespace: client, Target: netip.AddrPortFrom(netlab.Host4(10, 2), 8080), Targets: 1,
		Source: netlab.Host4(10, 1), Sources: 1, Clients: 2}
}

const span = 100 * time.Millisecond

func TestWireConnectAndRequest(t *testing.T) {
	client, node := pair(t)
	server, err := Serve(node, 8080, 4, true)
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	l := load(client)
	for name, f := range map[string]func() (Outcome, error){
		"connect":    func() (Outcome, error) { return l.Connect(context.Background(), 0, span) },
		"request":    func() (Outcome, error) { return l.Request(context.Background(), 0, span) },
		"request at": func() (Outcome, error) { return l.RequestAt(context.Background(), 500, 0, span) },
	} {
		o, err := f()
		if err != nil || o.Failed > 0 || o.Done == 0 || o.P50 == 0 || o.P99 < o.P50 {
			t.Errorf("%s: %+v, error %v", name, o, err)
		}
	}
}

// A server that is not there makes failures, which say why.
func TestWireRefusedConnections(t *testing.T) {
	client, _ := pair(t)
	o, err := load(client).Connect(context.Background(), 0, span)
	if err != nil || o.Done != 0 || o.Failed == 0 || o.FirstErr == nil {
		t.Errorf("%+v, error %v", o, err)
	}
}

func TestWireBulk(t *testing.T) {
	client, node := pair(t)
	server, err := Serve(node, 8080, 4, false)
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	o, err := load(client).Bulk(context.Background(), server, span/2, span)
	if err != nil || o.Failed > 0 || o.Bytes == 0 || o.Bytes > server.Received() {
		t.Errorf("%+v, %d bytes received, error %v", o, server.Received(), err)
	}
}
