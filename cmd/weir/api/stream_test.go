package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// An object in pieces is the bytes of the object as a whole.
func TestObjectWriterWritesWhatTheEncoderWrites(t *testing.T) {
	type element struct {
		Name string `json:"name"`
		Tags []int  `json:"tags"`
	}
	type object struct {
		Node     string         `json:"node"`
		Elements []element      `json:"elements"`
		Notes    []string       `json:"notes"`
		Rest     map[string]int `json:"rest"`
	}
	for _, v := range []object{
		{"a<b", []element{{"x", []int{1, 2}}, {"y", []int{}}}, []string{"n"}, map[string]int{"a": 1}},
		{"", []element{{"x", nil}}, nil, nil},
		{"n", []element{}, []string{}, map[string]int{}},
	} {
		for _, indent := range []bool{true, false} {
			var got, want strings.Builder
			w := NewObjectWriter(&got, indent)
			w.Field("node", v.Node)
			w.List("elements")
			for _, e := range v.Elements {
				w.Element(e)
			}
			w.End()
			w.Field("notes", v.Notes)
			w.Field("rest", v.Rest)
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			enc := json.NewEncoder(&want)
			enc.SetEscapeHTML(false)
			if indent {
				enc.SetIndent("", "  ")
			}
			if err := enc.Encode(v); err != nil {
				t.Fatal(err)
			}
			text := got.String()
			if !indent {
				text = strings.ReplaceAll(strings.TrimSpace(text), "\n", "") + "\n" // no element has a newline
			}
			if text != want.String() {
				t.Errorf("indent %v: got\n%s\nwant\n%s", indent, text, &want)
			}
		}
	}
	var b strings.Builder
	if err := NewObjectWriter(&b, true).Close(); err != nil || b.String() != "{}\n" {
		t.Errorf("%q, %v", b.String(), err)
	}
}

// endless has answers without an end, and reports how each of them ended.
type endless struct {
	fakeSource
	begun, ended chan error
}

func newEndless() *endless {
	return &endless{fakeSource{status: exampleStatus()}, make(chan error, 9), make(chan error, 9)}
}

func (e *endless) stream(w *ObjectWriter) error {
	e.begun <- nil
	w.List("services")
	for w.Err() == nil {
		w.Element("some text that fills a buffer")
	}
	e.ended <- w.Err()
	return w.Err()
}

func (e *endless) Explain(context.Context, ExplainQuery) (Stream, error) { return e.stream, nil }
func (e *endless) Frontends(context.Context) (Stream, error)             { return e.stream, nil }

// shortWait is for tests in which nothing gives a place back.
var shortWait = times{stall: readerStall, wait: 10 * time.Millisecond}

func admitAll(*http.Request, *route) error { return nil }

// serveHandler serves for the length of the test.
func serveHandler(t *testing.T, h http.Handler) (socket string) {
	t.Helper()
	l, err := Listen(filepath.Join(t.TempDir(), "weir.sock"))
	if err != nil {
		t.Fatal(err)
	}
	s, done := &http.Server{Handler: h}, make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Close()
		<-done
	})
	return l.Addr().String()
}

// A reader that takes nothing keeps one answer of a kind, for a time, and
// nobody else.
func TestStuckReaderHoldsNobodyUp(t *testing.T) {
	for _, path := range []string{"/v1/explain", "/v1/frontends"} {
		t.Run(path, func(t *testing.T) {
			src := newEndless()
			socket := serveHandler(t, handler(src, shortWait, admitAll))
			stuck, err := net.Dial("unix", socket)
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(stuck, "GET %s HTTP/1.1\r\nHost: weir\r\n\r\n", path)
			<-src.begun
			c := NewClient(socket)
			defer c.daemon.http.CloseIdleConnections()
			if _, err := c.Status(t.Context()); err != nil {
				t.Errorf("status beside a stuck reader: %v", err)
			}
			if _, err := c.daemon.do(t.Context(), http.MethodGet, path, nil); err == nil || !errors.Is(err, ErrTryAgain) || !strings.Contains(err.Error(), "root has 1 under way") {
				t.Errorf("a second answer beside a stuck reader: %v", err)
			}
			stuck.Close()
			if err := <-src.ended; err == nil {
				t.Error("the answer to a client that is gone has no error")
			}
		})
	}
}

// A stuck reader that stays connected is given up, and its place is free again.
func TestStuckReaderIsGivenUp(t *testing.T) {
	src := newEndless()
	socket := serveHandler(t, handler(src, times{stall: 50 * time.Millisecond, wait: admitTime}, admitAll))
	stuck, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer stuck.Close()
	fmt.Fprint(stuck, "GET /v1/frontends HTTP/1.1\r\nHost: weir\r\n\r\n")
	<-src.begun
	if err := <-src.ended; !isTimeout(err) {
		t.Errorf("got %v", err)
	}

	// The answer has ended, and its handler has not returned yet. It gives its
	// place back before the connection is closed.
	_, _ = io.Copy(io.Discard, stuck)
	c := NewClient(socket)
	defer c.daemon.http.CloseIdleConnections()
	res, err := c.daemon.http.Get("http://weir/v1/frontends")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		t.Errorf("after the stuck reader: %s", res.Status)
	}
	<-src.begun
}

func isTimeout(err error) bool {
	var n net.Error
	return errors.As(err, &n) && n.Timeout()
}

// broken fails in the middle of its answers.
type broken struct{ fakeSource }

func (b *broken) Explain(context.Context, ExplainQuery) (Stream, error) {
	return func(w *ObjectWriter) error {
		w.List("services")
		w.Element(strings.Repeat("x", 1<<16)) // more than a buffer: the status is sent
		return errors.New("no more")
	}, nil
}

func TestClientTakesNoPartForTheWhole(t *testing.T) {
	c := NewClient(serve(t, &broken{}))
	defer c.daemon.http.CloseIdleConnections()
	if raw, err := c.Explain(t.Context(), ExplainQuery{}); err == nil || !strings.Contains(err.Error(), "ended its answer to /v1/explain early") {
		t.Errorf("%d bytes, %v", len(raw), err)
	}
}

// A large list of flows is one at a time as well; small ones are not.
func TestLargeListsOfFlowsAreOneAtATime(t *testing.T) {
	inside, leave := make(chan bool), make(chan bool)
	h := handler(&slowFlows{inside: inside, leave: leave}, shortWait, admitAll)
	ask := func(limit int) int {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, fmt.Sprintf("/v1/flows?limit=%d", limit), nil))
		return w.Code
	}
	first := make(chan int)
	go func() { first <- ask(MaxFlowLimit) }()
	<-inside
	if code := ask(MaxFlowLimit); code != http.StatusTooManyRequests {
		t.Errorf("a second large list: %d", code)
	}
	if code := ask(DefaultFlowLimit); code != http.StatusOK {
		t.Errorf("a small list: %d", code)
	}
	leave <- true
	if code := <-first; code != http.StatusOK {
		t.Errorf("the first: %d", code)
	}
}

type slowFlows struct {
	fakeSource
	inside, leave chan bool
}

func (s *slowFlows) Flows(_ context.Context, limit int, _ *FlowMatcher) (*FlowList, error) {
	if limit > DefaultFlowLimit {
		s.inside <- true
		<-s.leave
	}
	return exampleFlows(), nil
}

// A trace copies a part of the flow table: there is a single trace at a time.
func TestTracesAreOneAtATime(t *testing.T) {
	inside, leave := make(chan bool), make(chan bool)
	h := handler(&slowTrace{inside: inside, leave: leave}, shortWait, admitAll)
	ask := func() int {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/v1/trace?protocol=UDP&source=10.0.0.1:1&destination=10.0.0.2:53", nil))
		return w.Code
	}
	first := make(chan int)
	go func() { first <- ask() }()
	<-inside
	second := make(chan int)
	go func() { second <- ask() }()
	select {
	case code := <-second:
		if code != http.StatusTooManyRequests {
			t.Errorf("a second trace: %d", code)
		}
		leave <- true
	case <-inside:
		t.Error("a second trace at the same time")
		leave <- true
		leave <- true
		<-second
	}
	if code := <-first; code != http.StatusOK {
		t.Errorf("the first: %d", code)
	}
}

type slowTrace struct {
	fakeSource
	inside, leave chan bool
}

func (s *slowTrace) Trace(ctx context.Context, q *TraceQuery) (*Trace, error) {
	s.inside <- true
	<-s.leave
	return s.fakeSource.Trace(ctx, q)
}
