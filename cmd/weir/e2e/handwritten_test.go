package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weirlb/weir/perf/netlab"
	"github.com/weirlb/weir/perf/netlab/patience"
	"github.com/weirlb/weir/perf/netlab/workload"
)

// Node ports of the hand-written Services.
const (
	handHTTP, handEcho  = 31080, 31007
	handLocal, handKeys = 31180, 31280
)

// nodeAt is a port on the edge node's address to clients.
func nodeAt(port uint16, six bool) netip.AddrPort {
	if six {
		return netip.AddrPortFrom(netlab.Host6(netlab.ClientNet, 1), port)
	}
	return netip.AddrPortFrom(netlab.Host4(netlab.ClientNet, 1), port)
}

// listed are endpoints as an Endpoints object lists addresses: by address
// alone, of both families.
func listed(endpoints ...endpoint) string {
	var out []string
	for _, e := range endpoints {
		out = append(out, fmt.Sprintf("{ip: %s}, {ip: \"%s\"}", e.addr(false), e.addr(true)))
	}
	return "[" + strings.Join(out, ", ") + "]"
}

// handService is a Service without a selector and without cluster IPs, as
// people write it.
func handService(name, spec string) string {
	return fmt.Sprintf("---\napiVersion: v1\nkind: Service\nmetadata: {namespace: test, name: %s}\nspec: {type: NodePort, %s}\n", name, spec)
}

// handEndpoints is the Endpoints object of a Service.
func handEndpoints(name string, subsets ...string) string {
	return fmt.Sprintf("---\napiVersion: v1\nkind: Endpoints\nmetadata: {namespace: test, name: %s}\nsubsets:\n- %s\n",
		name, strings.Join(subsets, "\n- "))
}

// handwritten is a fixture that serves one text.
func handwritten(t *testing.T, text string) *fixture {
	t.Helper()
	f := ownFixture(t, options{})
	replace(t, f.manifest(), []byte(text))
	return f
}

// settled waits until every node port of the text has exactly these
// endpoints, given as port: addresses.
func (f *fixture) settled(t *testing.T, want map[uint16][]netip.AddrPort) {
	t.Helper()
	err := f.poll(func(ctx context.Context) error {
		list, err := f.admin.Frontends(ctx)
		if err != nil {
			return err
		}
		got := map[string]string{}
		for _, fr := range list.Frontends {
			var addrs []string
			for _, e := range fr.Endpoints {
				addrs = append(addrs, e.Address)
			}
			slices.Sort(addrs)
			got[fr.Address+"/"+fr.Protocol] = strings.Join(addrs, " ")
		}
		for port, endpoints := range want {
			for _, six := range []bool{false, true} {
				var addrs []string
				for _, e := range endpoints {
					if e.Addr().Is6() == six {
						addrs = append(addrs, e.String())
					}
				}
				slices.Sort(addrs)
				key := nodeAt(port, six).String() + "/TCP"
				if is, found := got[key]; !found || is != strings.Join(addrs, " ") {
					return fmt.Errorf("frontend %s has endpoints %q, want %q; all frontends: %v", key, is, addrs, got)
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// on is both families' address of an endpoint with a port.
func (e endpoint) on(port uint16) []netip.AddrPort {
	return []netip.AddrPort{netip.AddrPortFrom(e.addr(false), port), netip.AddrPortFrom(e.addr(true), port)}
}

// checkServers makes requests to a node port; exactly these servers must
// answer, and no request may fail.
func (f *fixture) checkServers(t *testing.T, port uint16, six bool, want ...string) {
	t.Helper()
	r, err := (&workload.Load{Namespace: f.Client, Targets: []netip.AddrPort{nodeAt(port, six)},
		Requests: 60, Timeout: patience.For(5 * time.Second)}).Run(inTime(t, patience.For(time.Minute)))
	if err == nil {
		err = r.Err()
	}
	if err != nil {
		t.Errorf("%s: %v; %s", nodeAt(port, six), err, f.whatWasDropped())
	}
	slices.Sort(want)
	if got := slices.Sorted(maps.Keys(r.Servers())); !slices.Equal(got, want) {
		t.Errorf("%s: answers from %v, want %v", nodeAt(port, six), got, want)
	}
}

// checkExplain holds the choice of endpoints that the running Weir explains to that of
// its manifests, also with --what-if.
func (f *fixture) checkExplain(t *testing.T, whatIf string) {
	t.Helper()
	var answers []any
	for _, from := range [][]string{{"--admin-socket", f.path("weir.sock")}, {"-f", f.path("manifests"), "--node", "edge-1"}} {
		args := append([]string{"explain", "-o", "json"}, from...)
		if whatIf != "" {
			args = append(args, "--what-if", whatIf)
		}
		out, err := f.command(args...).Output()
		if err != nil {
			t.Fatalf("weir %s: %v", strings.Join(args, " "), err)
		}
		var answer map[string]any
		if err := json.Unmarshal(out, &answer); err != nil {
			t.Fatal(err)
		}
		services, _ := answer["services"].([]any)
		for _, svc := range services {
			// What a node serves follows from its addresses, which the files do not have.
			for _, field := range []string{"frontends", "problems"} {
				delete(svc.(map[string]any), field)
			}
		}
		answers = append(answers, services)
		if len(services) == 0 || whatIf != "" && !bytes.Contains(out, []byte(`"moved"`)) {
			t.Errorf("weir %s: %s", strings.Join(args, " "), out)
		}
	}
	if diff := cmp.Diff(answers[1], answers[0]); diff != "" {
		t.Errorf("what if %q: the running Weir does not say what its manifests do (-manifests +running):\n%s", whatIf, diff)
	}
}

// A NodePort Service without a selector is served from a legacy Endpoints
// object: several subsets, the same port name with two numbers, addresses of
// both families, and none that is not ready.
func TestWireHandwrittenEndpoints(t *testing.T) {
	svc := handService("legacy", fmt.Sprintf("ports: [{name: http, port: 80, nodePort: %d}, {name: echo, port: 7, nodePort: %d}, "+
		"{name: echo-udp, protocol: UDP, port: 7, nodePort: %d}]", handHTTP, handEcho, handEcho))
	const other = 8088 // the number of port http in the second subset
	const ports = "ports: [{name: http, port: 8080}, {name: echo, port: 7777}, {name: echo-udp, protocol: UDP, port: 7777}]"
	f := handwritten(t, svc+handEndpoints("legacy",
		"{addresses: "+listed(attached)+", notReadyAddresses: "+listed(onNode)+", "+ports+"}",
		fmt.Sprintf("{addresses: %s, ports: [{name: http, port: %d}]}", listed(routed), other),
		"{addresses: "+listed(pod)+", ports: [{name: echo, port: 7777}]}"))
	for _, at := range routed.on(other) {
		web, err := workload.Serve(f.ZoneB, "routed, other port", at.String())
		if err != nil {
			t.Fatal(err)
		}
		f.OnClose(web.Close)
	}
	f.settled(t, map[uint16][]netip.AddrPort{
		handHTTP: slices.Concat(attached.on(httpTarget), routed.on(other)),
		handEcho: slices.Concat(attached.on(echoTarget), pod.on(echoTarget)),
	})
	f.checkChecksums(t)
	bothFamilies(t, func(t *testing.T, six bool) {
		f.checkServers(t, handHTTP, six, "attached", "routed, other port")
		if name, err := workload.Ask(f.Client, nodeAt(handEcho, six), patience.For(2*time.Second)); err != nil || name != "attached" {
			t.Errorf("UDP: %q answered, %v", name, err)
		}
		transfer := &workload.Transfer{Namespace: f.Client, Target: nodeAt(handHTTP, six), Bytes: 500_000, Seed: 7}
		if err := transfer.Download(inTime(t, within)); err != nil {
			t.Error(err)
		}
	})

	f.checkExplain(t, "")
	f.checkExplain(t, "drain="+routed.addr(false).String())
	f.checkExplain(t, "node=edge-1")

	// The address that was not ready is, the other one no longer.
	replace(t, f.manifest(), []byte(svc+handEndpoints("legacy",
		"{addresses: "+listed(onNode)+", notReadyAddresses: "+listed(attached)+", "+ports+"}")))
	f.settled(t, map[uint16][]netip.AddrPort{handHTTP: onNode.on(httpTarget), handEcho: onNode.on(echoTarget)})
	bothFamilies(t, func(t *testing.T, six bool) { f.checkServers(t, handHTTP, six, "node") })
}

// Endpoints written without a node are on the Node whose address they have:
// Local policy and the topology key kubernetes.io/hostname find those of this
// node. When no Node has the address any longer nothing is local.
func TestWireHandwrittenEndpointsOnANode(t *testing.T) {
	const node = "---\napiVersion: v1\nkind: Node\nmetadata: {name: %s, labels: {kubernetes.io/hostname: %[1]s}}\n" +
		"status: {addresses: [{type: InternalIP, address: %s}, {type: %s, address: \"%s\"}]}\n"
	nodes := fmt.Sprintf(node, "edge-1", onNode.addr(false), "InternalIP", onNode.addr(true)) +
		fmt.Sprintf(node, "zonea", attached.addr(false), "ExternalIP", attached.addr(true))
	subset := "{addresses: " + listed(onNode, attached) + ", ports: [{port: 8080}]}"
	rest := handService("local", fmt.Sprintf("externalTrafficPolicy: Local, ports: [{port: 80, nodePort: %d}]", handLocal)) +
		handEndpoints("local", subset) +
		handService("keys", fmt.Sprintf("topologyKeys: [kubernetes.io/hostname], ports: [{port: 80, nodePort: %d}]", handKeys)) +
		handEndpoints("keys", subset)

	f := handwritten(t, nodes+rest)
	own := onNode.on(httpTarget)
	f.settled(t, map[uint16][]netip.AddrPort{handLocal: own, handKeys: own})
	bothFamilies(t, func(t *testing.T, six bool) {
		f.checkServers(t, handLocal, six, "node")
		f.checkServers(t, handKeys, six, "node")
	})

	replace(t, f.manifest(), []byte(rest))
	f.settled(t, map[uint16][]netip.AddrPort{handLocal: nil, handKeys: nil})
	bothFamilies(t, func(t *testing.T, six bool) {
		for port, kind := range map[uint16]string{handLocal: workload.KindTimeout, handKeys: workload.KindRefused} {
			r, err := (&workload.Load{Namespace: f.Client, Targets: []netip.AddrPort{nodeAt(port, six)},
				Requests: 1, Timeout: time.Second}).Run(inTime(t, within))
			if err != nil || r.Failures()[kind] != 1 {
				t.Errorf("port %d: %v, %v; want %s", port, r.Failures(), err, kind)
			}
		}
	})
}
