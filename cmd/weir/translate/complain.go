package translate

import (
	"fmt"

	"github.com/weirlb/weir/cmd/weir/problem"
	"github.com/weirlb/weir/lb/table"
)

// complain notes a problem of the Service that is being translated.
func (s *translation) complain(kind problem.Kind, field, format string, args ...any) {
	s.problems = append(s.problems, problem.New(kind, field, format, args...))
}

// otherClass notes load balancer addresses that are for another load balancer.
func (s *translation) otherClass() {
	want := s.t.opts.LoadBalancerClass
	if want == "" || len(s.svc.LoadBalancerIPs) == 0 || s.svc.LoadBalancerClass == want {
		return
	}
	s.complain(problem.OtherClass, "spec.loadBalancerClass",
		"is %q and loadBalancerClass of the configuration is %q: the load balancer addresses are not served", s.svc.LoadBalancerClass, want)
}

// field is the field of the Service that the port of a frontend is from.
func (f *familyPort) field(kind table.Kind) string {
	if kind == table.NodePort {
		return fmt.Sprintf("spec.ports[%d].nodePort", f.index)
	}
	return fmt.Sprintf("spec.ports[%d].port", f.index)
}

// WantsNodeAddress reports whether a Service has node ports and there is no
// address of the node to serve them on.
func (t *Translator) WantsNodeAddress() bool {
	if len(t.opts.NodeAddresses) > 0 {
		return false
	}
	for _, e := range t.services {
		if hasNodePort(e.svc) {
			return true
		}
	}
	return false
}
