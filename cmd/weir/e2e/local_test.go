package e2e

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/perf/netlab"
	"github.com/weirlb/weir/perf/netlab/patience"
	"github.com/weirlb/weir/perf/netlab/workload"
)

// Services with externalTrafficPolicy: Local, as MetalLB's users have them.
var (
	toLocalPod  = service{name: "localpod", index: 21, local: true, endpoints: []endpoint{pod, overlay}}
	toLocalNode = service{name: "localnode", index: 22, local: true, endpoints: []endpoint{onNode, attached}}
)

// Servers see the client's address where externalTrafficPolicy is Local, while
// the same servers' other connections keep their way.
func TestWireLocalPolicyKeepsTheClientsAddress(t *testing.T) {
	for _, wildcard := range []bool{false, true} {
		t.Run(fmt.Sprintf("wildcard=%v", wildcard), func(t *testing.T) {
			f := ownFixture(t, options{services: []service{toPod, toNode, toLocalPod, toLocalNode}, wildcard: wildcard})
			for s, server := range map[*service]service{&toLocalPod: toPod, &toLocalNode: toNode} {
				t.Run(s.name, func(t *testing.T) {
					bothFamilies(t, func(t *testing.T, six bool) { f.checkLocal(t, *s, server, six) })
				})
			}
			f.checkLocalModes(t)
			f.checkUsed(t)
		})
	}
}

func (f *fixture) checkLocal(t *testing.T, s, server service, six bool) {
	client := netlab.Host4(netlab.ClientNet, 2)
	if six {
		client = netlab.Host6(netlab.ClientNet, 2)
	}
	// A connection straight to the endpoint that is open all the time.
	aside, err := f.Edge.Edge.DialContext(inTime(t, within), "tcp", netip.AddrPortFrom(s.endpoints[0].addr(six), echoTarget).String())
	if err != nil {
		t.Fatal(err)
	}
	defer aside.Close()
	for _, to := range []netip.AddrPort{s.at(httpPort, six), s.atNode(httpPort, six)} {
		transfer := &workload.Transfer{Namespace: f.Client, Target: to, Bytes: 1_000_003, Seed: 3}
		if err := transfer.Download(inTime(t, within)); err != nil {
			t.Errorf("%s: %v", to, err)
		}
		seen, err := netip.ParseAddrPort(transfer.SeenAs())
		if err != nil || seen.Addr().Unmap() != client || transfer.Server() != server.name {
			t.Errorf("%s: server %q saw %s, want %q to see %s", to, transfer.Server(), transfer.SeenAs(), server.name, client)
		}
		checkSays(t, aside)
	}
	for _, to := range []netip.AddrPort{s.at(echoPort, six), s.atNode(echoPort, six)} {
		if who, err := workload.Ask(f.Client, to, patience.For(2*time.Second)); err != nil || who != server.name {
			t.Errorf("UDP %s: %q answered, %v", to, who, err)
		}
	}
	// Cluster policy leads to the same endpoint by nat.
	f.checkEndpoint(t, server, six, server.at)
	f.checkHealth(t, s)
}

// checkSays exchanges some bytes over a connection to an echo server.
func checkSays(t *testing.T, c net.Conn) {
	t.Helper()
	_ = c.SetDeadline(time.Now().Add(within))
	if _, err := c.Write([]byte("still here?")); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 11)
	if _, err := io.ReadFull(c, buf); err != nil || string(buf) != "still here?" {
		t.Errorf("the connection beside Weir: %q %v", buf, err)
	}
}

// checkHealth asks what a load balancer in front asks.
func (f *fixture) checkHealth(t *testing.T, s service) {
	t.Helper()
	client := &http.Client{Timeout: within, Transport: &http.Transport{DialContext: f.Client.DialContext}}
	defer client.CloseIdleConnections()
	answer, err := client.Get(fmt.Sprintf("http://%s/healthz", netip.AddrPortFrom(netlab.Host4(netlab.ClientNet, 1), s.healthPort())))
	if err != nil {
		t.Error(err)
		return
	}
	defer answer.Body.Close()
	body, _ := io.ReadAll(answer.Body)
	if answer.StatusCode != http.StatusOK || !strings.Contains(string(body), `"localEndpoints": 1`) {
		t.Errorf("healthCheckNodePort: %s: %s", answer.Status, body)
	}
}

// checkLocalModes compares what weir status says of each Service's forwarding.
func (f *fixture) checkLocalModes(t *testing.T) {
	t.Helper()
	list, err := f.admin.Frontends(inTime(t, within))
	if err != nil {
		t.Fatal(err)
	}
	for _, fe := range list.Frontends {
		want := "nat"
		if strings.HasPrefix(fe.Service, "test/local") {
			want = "dnat"
		}
		for _, e := range fe.Endpoints {
			if e.Mode != want {
				t.Errorf("%s %s to %s: mode %s, want %s", fe.Service, fe.Address, e.Address, e.Mode, want)
			}
		}
	}
}

// checkUsed compares what weir endpoints says about clients: an endpoint elsewhere gets none of
// theirs, though those inside the cluster reach it.
func (f *fixture) checkUsed(t *testing.T) {
	t.Helper()
	for _, e := range askJSON[api.EndpointList](t, f, "endpoints", "test/"+toLocalPod.name).Endpoints {
		here := e.Node == "edge-1"
		if e.Policy != "Local" || e.Used != here || !e.Cluster || !strings.HasPrefix(e.Reason, map[bool]string{true: "on this node", false: "not on this node"}[here]) {
			t.Errorf("%+v", e)
		}
		if here && e.Port == "http" && e.Attempts.Answered == 0 || e.Attempts.Refused+e.Attempts.Unanswered > 0 {
			t.Errorf("%s %s: attempts %+v", e.Port, e.Address, e.Attempts)
		}
	}
}
