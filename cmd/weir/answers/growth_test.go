package answers

import (
	"fmt"
	"testing"

	"github.com/weirlb/weir/discovery"
	"github.com/weirlb/weir/perf/growth"
)

func TestNamesOfPortsGrowInProportionToPorts(t *testing.T) {
	prepare := func(n int) func() {
		svc := &discovery.Service{Name: discovery.ServiceName{Namespace: "ns", Name: "many"}}
		for port := range uint16(n) {
			svc.Ports = append(svc.Ports, discovery.Port{Name: fmt.Sprint("p", port), Protocol: "TCP", Port: port + 1, NodePort: port + 1})
		}
		return func() { portNames([]*discovery.Service{svc}) }
	}
	if r := growth.Ratio(500, 4000, prepare); r > growth.Linear(500, 4000) {
		t.Errorf("4,000 ports take %.0f times the CPU time of 500", r)
	}
}
