package chaos

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"time"

	"github.com/weirlb/weir/perf/netlab"
)

// service is a Service with some of the hosts as endpoints.
type service struct {
	name   string
	index  uint8 // of its load balancer IPs and node port
	listed []bool
	// fixed: its endpoints do not change.
	fixed bool
	// fabric: it may have an endpoint behind eth1.
	fabric bool
	// checked: its endpoints are. Those of any Service are ejected that accept no connection.
	checked bool
}

// changing are the Services whose endpoints come and go.
const changing = 20

// newServices are a Service for each host, and those that change.
func newServices() []*service {
	var out []*service
	for i, h := range hosts {
		s := &service{name: h.name, index: uint8(11 + i), listed: make([]bool, len(hosts)), fixed: true, fabric: h.fabric, checked: true}
		s.listed[i] = true
		out = append(out, s)
	}
	for i := range changing {
		s := &service{name: fmt.Sprintf("changing-%d", i), index: uint8(20 + i), listed: make([]bool, len(hosts)), fabric: true, checked: i%2 == 0}
		for h := range s.listed {
			s.listed[h] = true
		}
		out = append(out, s)
	}
	return out
}

func (s *service) at(six bool) netip.AddrPort {
	a := netlab.Host4(netlab.LBNet, s.index)
	if six {
		a = netlab.Host6(netlab.LBNet, s.index)
	}
	return netip.AddrPortFrom(a, echoPort)
}

// render is the Service as a YAML document.
func (s *service) render() []byte {
	annotations := "{}"
	if s.checked {
		annotations = fmt.Sprintf("{weir.dev/health-check: '{httpGet: {port: %d}, periodSeconds: 1, failureThreshold: 2}'}", checkTarget)
	}
	return fmt.Appendf(nil, `apiVersion: v1
kind: Service
metadata: {namespace: chaos, name: %[1]s, annotations: %[8]s}
spec:
  type: LoadBalancer
  selector: {app: %[1]s}
  ipFamilyPolicy: RequireDualStack
  ipFamilies: [IPv4, IPv6]
  clusterIP: 10.96.0.%[2]d
  clusterIPs: [10.96.0.%[2]d, "fd96::%[2]d"]
  ports: [{name: echo, protocol: TCP, port: %[3]d, targetPort: %[4]d, nodePort: %[5]d}]
status:
  loadBalancer: {ingress: [{ip: %[6]s, ipMode: VIP}, {ip: "%[7]s", ipMode: VIP}]}
`, s.name, s.index, echoPort, echoTarget, 30000+int(s.index), s.at(false).Addr(), s.at(true).Addr(), annotations)
}

// renderSlices are the slices of the Service, a YAML document per family.
func (s *service) renderSlices() (documents [][]byte) {
	for _, six := range []bool{false, true} {
		kind, suffix := "IPv4", "v4"
		if six {
			kind, suffix = "IPv6", "v6"
		}
		b := fmt.Appendf(nil, `apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: chaos, name: %[1]s-%[2]s, labels: {kubernetes.io/service-name: %[1]s}}
addressType: %[3]s
ports: [{name: echo, protocol: TCP, port: %[4]d}]
endpoints:
`, s.name, suffix, kind, echoTarget)
		for i, h := range hosts {
			if s.listed[i] {
				b = fmt.Appendf(b, "- {addresses: [\"%s\"], nodeName: %s, conditions: {ready: true, serving: true, terminating: false}}\n", h.addr(six), h.node)
			}
		}
		documents = append(documents, b)
	}
	return documents
}

// flip lists an endpoint, or takes it out; a Service keeps at least one.
func (s *service) flip(i int) {
	others := false
	for h, listed := range s.listed {
		others = others || listed && h != i
	}
	s.listed[i] = !s.listed[i] || !others
}

// churnEvery is the time between two writes, which have several changes each.
const churnEvery = 100 * time.Millisecond

// churn changes endpoints until ctx ends, at the rate of the configuration.
func (src *source) churn(ctx context.Context, cfg *Config) error {
	if cfg.Changes == 0 {
		return nil
	}
	rng := rand.New(rand.NewPCG(cfg.Seed, 2))
	tick := time.NewTicker(churnEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		src.changing.Lock()
		var changed []*service
		for range max(1, cfg.Changes*int(churnEvery)/int(time.Second)) {
			s := src.services[len(hosts)+rng.IntN(changing)]
			s.flip(rng.IntN(len(hosts)))
			changed = append(changed, s)
		}
		err := src.publish(changed)
		src.changing.Unlock()
		if err != nil {
			return fmt.Errorf("endpoint churn: %w", err)
		}
	}
}
