package api

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// brokenSource ends the list of Services in the middle.
type brokenSource struct{ fakeSource }

func (*brokenSource) ServiceStates(string) (Stream, error) {
	return func(w *ObjectWriter) error {
		w.List("services")
		w.Element(&exampleServices().Services[0])
		return errors.New("fault")
	}, nil
}

// A client in the process gets what a client of the socket gets, with errors.
func TestLocalClientGetsTheSameAnswers(t *testing.T) {
	src := &fakeSource{status: exampleStatus()}
	remote, local := NewClient(serve(t, src)), NewLocalClient(src)
	defer remote.daemon.http.CloseIdleConnections()
	want, err := remote.Services(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	var got []ServiceState
	if err := local.EachService(t.Context(), func(s *ServiceState) error { got = append(got, *s); return nil }); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want.Services, got); diff != "" {
		t.Errorf("-socket +process:\n%s", diff)
	}
	n := 0
	if err := local.EachEndpoint(t.Context(), "default/web", func(*EndpointState) error { n++; return nil }); err != nil || n != 2 {
		t.Errorf("%d endpoints, %v", n, err)
	}
	if err := local.EachEndpoint(t.Context(), "a/b", func(*EndpointState) error { return nil }); !errors.Is(err, ErrNotFound) {
		t.Errorf("endpoints of no Service: %v", err)
	}
	stop := errors.New("enough")
	if err := local.EachService(t.Context(), func(*ServiceState) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("a reader that stops: %v", err)
	}
	if err := NewLocalClient(&brokenSource{}).EachService(t.Context(), func(*ServiceState) error { return nil }); err == nil {
		t.Errorf("half an answer: %v", err)
	}
	src.status = nil
	if _, err := local.Status(t.Context()); err == nil || err.Error() != "no status yet" {
		t.Errorf("an error of the source: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := local.Status(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("a client that has gone: %v", err)
	}
}
