package demo

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/weirlb/weir/perf/netlab"
	"github.com/weirlb/weir/perf/netlab/patience"
	"github.com/weirlb/weir/perf/netlab/workload"
)

// The Service of the last phase: the endpoint is in zone b, receives packets in a tunnel
// and answers the client directly.
const (
	directName  = "shop/direct"
	directHost  = 20 // of the load balancer IPs
	directBytes = 16 << 20
	backNet     = 77 // between the fabric and the client, past Weir
)

// directManifest has the Service and the slices. Nothing translates ports, so the Service's
// port is the server's.
func directManifest() []byte {
	b := backends[2]
	text := fmt.Appendf(nil, `apiVersion: v1
kind: Service
metadata: {namespace: shop, name: direct, annotations: {weir.dev/forwarding-mode: ipip}}
spec:
  type: LoadBalancer
  allocateLoadBalancerNodePorts: false
  ports: [{name: http, protocol: TCP, port: %d}]
status: {loadBalancer: {ingress: [{ip: %s}, {ip: "%s"}]}}
`, httpTarget, directAddr(false), directAddr(true))
	for _, a := range []netip.Addr{netlab.Host4(b.network, b.host), netlab.Host6(b.network, b.host)} {
		family := "IPv4"
		if a.Is6() {
			family = "IPv6"
		}
		text = fmt.Appendf(text, `---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: shop, name: direct-%s, labels: {kubernetes.io/service-name: direct}}
addressType: %s
ports: [{name: http, protocol: TCP, port: %d}]
endpoints: [{addresses: ["%s"], conditions: {ready: true}, nodeName: %s}]
`, strings.ToLower(family), family, httpTarget, a, b.node)
	}
	return text
}

func directAddr(six bool) netip.Addr {
	if six {
		return netlab.Host6(netlab.LBNet, directHost)
	}
	return netlab.Host4(netlab.LBNet, directHost)
}

// direct is the outcome of a download by direct server return.
type direct struct {
	name     string
	err      error
	server   string
	seenAs   string
	requests uint64 // packets that went through Weir meanwhile
	byWeir   uint64 // bytes that the client got from the edge node
	past     uint64 // bytes that it got by the other link
}

// faults lists the violated expectations.
func (d direct) faults() []string {
	var out []string
	add := func(format string, args ...any) {
		out = append(out, fmt.Sprintf("(f) "+d.name+": "+format, args...))
	}
	if d.err != nil {
		add("%v", d.err)
		return out
	}
	if d.requests == 0 || d.past < directBytes || d.byWeir > directBytes/100 {
		add("%d packets through Weir; of %d bytes the client got %d past it and %d from it", d.requests, directBytes, d.past, d.byWeir)
	}
	if d.server != backends[2].name {
		add("%s answered", d.server)
	}
	if a, err := netip.ParseAddrPort(d.seenAs); err != nil || a.Addr().Unmap() != netlab.Host4(netlab.ClientNet, 2) && a.Addr() != netlab.Host6(netlab.ClientNet, 2) {
		add("the server saw %s and not the client", d.seenAs)
	}
	return out
}

// playDirect is the phase of the answers that do not return to Weir. It is the last phase:
// the other phases' accounts expect all packets to return.
func (s *site) playDirect(ctx context.Context, r *report) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, patience.For(startWithin+applyWithin))
	defer cancel()
	if err := s.backLink(); err != nil {
		return nil, err
	}
	decap, err := s.startDecap(ctx)
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(s.manifests, "direct.yaml"), directManifest(), 0o644); err != nil {
		return nil, err
	}
	if err := s.weir.Until(ctx, func(ctx context.Context) error {
		list, err := s.admin.Frontends(ctx)
		if err != nil {
			return err
		}
		found := 0
		for _, f := range list.Frontends {
			if f.Service == directName && len(f.Endpoints) > 0 {
				found++
			}
		}
		if found != 2 {
			return fmt.Errorf("%d frontends of %s, want 2", found, directName)
		}
		return nil
	}); err != nil {
		return nil, fmt.Errorf("weir has not taken up %s: %w\n%s", directName, err, s.logTail())
	}
	var results []direct
	var faults []string
	for _, six := range []bool{false, true} {
		d, err := s.downloadDirect(ctx, six)
		if err != nil {
			return nil, err
		}
		results = append(results, d)
		faults = append(faults, d.faults()...)
	}
	r.direct(results, faults)
	return faults, decap.Stop(patience.For(stopWithin))
}

// backLink joins the fabric and the client: answers need not come back.
func (s *site) backLink() error {
	on := func(host uint8) []netip.Prefix {
		return []netip.Prefix{netip.PrefixFrom(netlab.Host4(backNet, host), 24), netip.PrefixFrom(netlab.Host6(backNet, host), 64)}
	}
	client, fabric := s.lab.Client, s.lab.Fabric
	if err := netlab.Connect(netlab.End{Namespace: client, Name: "back", Addrs: on(2)},
		netlab.End{Namespace: fabric, Name: "back", Addrs: on(254)}, netlab.LinkConfig{}); err != nil {
		return err
	}
	return errors.Join(
		fabric.AddRoute("back", netip.PrefixFrom(netlab.Host4(netlab.ClientNet, 0), 24), netlab.Host4(backNet, 2)),
		fabric.AddRoute("back", netip.PrefixFrom(netlab.Host6(netlab.ClientNet, 0), 64), netlab.Host6(backNet, 2)),
		client.SetSysctl("net/ipv4/conf/all/rp_filter", "0"),
		client.SetSysctl("net/ipv4/conf/back/rp_filter", "0"))
}

// startDecap starts `weir decap` on the endpoint's node and waits until it
// receives.
func (s *site) startDecap(ctx context.Context) (*netlab.Process, error) {
	file := filepath.Join(s.lab.Dir(), "decap.log")
	log, err := os.Create(file)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.Command(s.program, "decap",
		"--from", fmt.Sprintf("%s,%s", netlab.Host4(netlab.FabricNet, 1), netlab.Host6(netlab.FabricNet, 1)),
		"--address", fmt.Sprintf("%s,%s", directAddr(false), directAddr(true)))
	cmd.Stdout, cmd.Stderr = log, log
	p, err := s.lab.ZoneB.Start(cmd)
	if err != nil {
		return nil, err
	}
	for {
		said, err := os.ReadFile(file)
		if err != nil || strings.Contains(string(said), "ready") {
			return p, err
		}
		select {
		case <-p.Done():
			return nil, fmt.Errorf("weir decap has ended: %s", said)
		case <-ctx.Done():
			return nil, fmt.Errorf("weir decap is not ready: %s", said)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func (s *site) downloadDirect(ctx context.Context, six bool) (direct, error) {
	d := direct{name: "LB IP, IPv4"}
	if six {
		d.name = "LB IP, IPv6"
	}
	got := func(ifname string) (uint64, error) {
		link, err := s.lab.Client.Interface(ifname)
		if err != nil {
			return 0, err
		}
		return link.Attrs().Statistics.RxBytes, nil
	}
	edge, err := got("eth0")
	if err != nil {
		return d, err
	}
	back, err := got("back")
	if err != nil {
		return d, err
	}
	before, err := s.count(ctx)
	if err != nil {
		return d, err
	}
	transfer := &workload.Transfer{Namespace: s.lab.Client, Target: netip.AddrPortFrom(directAddr(six), httpTarget), Bytes: directBytes}
	d.err = transfer.Download(ctx)
	d.server, d.seenAs = transfer.Server(), transfer.SeenAs()
	counted, err := s.settle(ctx, before)
	if err != nil {
		return d, err
	}
	d.requests = counted.through()
	if d.byWeir, err = got("eth0"); err != nil {
		return d, err
	}
	if d.past, err = got("back"); err != nil {
		return d, err
	}
	d.byWeir, d.past = d.byWeir-edge, d.past-back
	for n, v := range counted.csumErrors {
		if v > 0 && d.err == nil {
			d.err = fmt.Errorf("%d packets with a wrong checksum arrived in namespace %s", v, n)
		}
	}
	return d, nil
}
