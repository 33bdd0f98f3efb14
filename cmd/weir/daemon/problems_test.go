package daemon

import (
	"testing"

	"github.com/weirlb/weir/cmd/weir/problem"
)

// The Event of a Service has all its problems, under the reason of the worst,
// and nothing that is passed over on purpose.
func TestEventOfProblems(t *testing.T) {
	reason, text := eventOf([]problem.Problem{
		problem.New(problem.FrontendConflict, "", "TCP 192.0.2.1:80 is held by Service a/b"),
		problem.New(problem.ForwardingMode, "spec.x", "nat is used"),
		problem.New(problem.OtherClass, "spec.loadBalancerClass", "another"),
	})
	if reason != "FrontendConflict" || text != "TCP 192.0.2.1:80 is held by Service a/b; spec.x: nat is used" {
		t.Errorf("%s %q", reason, text)
	}
	if reason, text = eventOf(nil); reason != "" || text != "" {
		t.Errorf("%s %q", reason, text)
	}
}
