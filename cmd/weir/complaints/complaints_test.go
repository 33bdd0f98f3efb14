package complaints

import (
	"errors"
	"log/slog"
	"testing"

	"github.com/weirlb/weir/cmd/weir/problem"
	"github.com/weirlb/weir/cmd/weir/translate"
	"github.com/weirlb/weir/lb/table"
)

// What could not be published of a Service is no problem any more when the Service is
// left to the kernel.
func TestPublicationProblemsEndWithTheService(t *testing.T) {
	r := problem.NewRegistry(slog.New(slog.DiscardHandler))
	put := translate.Batch{Put: []table.Service{{Name: "default/web"}}}
	OfPublication(r, &put, errors.Join(&table.ServiceError{Service: "default/web", Err: errors.New("no number is free")}))
	if list, _ := r.List(10); len(list) != 1 || list[0].Object != "Service default/web" {
		t.Fatalf("got %v", list)
	}
	OfPublication(r, &translate.Batch{Delete: []string{"default/web"}}, nil)
	if list, _ := r.List(10); len(list) != 0 {
		t.Errorf("still there: %v", list)
	}
}

// The Event of a Service has all its problems, under the reason of the worst,
// and nothing that is passed over on purpose.
func TestEventOfProblems(t *testing.T) {
	reason, text := EventOf([]problem.Problem{
		problem.New(problem.FrontendConflict, "", "TCP 192.0.2.1:80 is held by Service a/b"),
		problem.New(problem.ForwardingMode, "spec.x", "nat is used"),
		problem.New(problem.OtherClass, "spec.loadBalancerClass", "another"),
	})
	if reason != "FrontendConflict" || text != "TCP 192.0.2.1:80 is held by Service a/b; spec.x: nat is used" {
		t.Errorf("%s %q", reason, text)
	}
	if reason, text = EventOf(nil); reason != "" || text != "" {
		t.Errorf("%s %q", reason, text)
	}
}
