package controller

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/weirlb/weir/discovery/kube/client"
	"github.com/weirlb/weir/perf/netlab/patience"
)

// leaseServer is an API server with a Lease, and refuses writes of another version than its own.
type leaseServer struct {
	mu      sync.Mutex
	lease   *coordinationv1.Lease
	version int
	away    bool
}

func (s *leaseServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	var sent coordinationv1.Lease
	switch {
	case s.away:
		refuse(w, http.StatusInternalServerError, metav1.StatusReasonInternalError)
		return
	case s.lease == nil && r.Method != http.MethodPost:
		refuse(w, http.StatusNotFound, metav1.StatusReasonNotFound)
		return
	case r.Method == http.MethodGet:
		_ = json.NewEncoder(w).Encode(s.lease)
		return
	}
	if err := json.NewDecoder(r.Body).Decode(&sent); err != nil {
		refuse(w, http.StatusBadRequest, metav1.StatusReasonBadRequest)
		return
	}
	switch {
	case r.Method == http.MethodPost && s.lease != nil:
		refuse(w, http.StatusConflict, metav1.StatusReasonAlreadyExists)
		return
	case r.Method == http.MethodPut && sent.ResourceVersion != s.lease.ResourceVersion:
		refuse(w, http.StatusConflict, metav1.StatusReasonConflict)
		return
	}
	s.set(&sent)
	_ = json.NewEncoder(w).Encode(s.lease)
}

// set has the Lease be written by another. Preconditions: nobody else does.
func (s *leaseServer) set(l *coordinationv1.Lease) {
	s.version++
	l.TypeMeta = metav1.TypeMeta{APIVersion: "coordination.k8s.io/v1", Kind: "Lease"}
	l.ResourceVersion = fmt.Sprint(s.version)
	s.lease = l
}

func (s *leaseServer) holder() (string, int32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lease == nil {
		return "none", 0
	}
	return value(s.lease.Spec.HolderIdentity), value(s.lease.Spec.LeaseTransitions)
}

func heldBy(name string, seconds int32) *coordinationv1.Lease {
	now := metav1.NowMicro()
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "l"},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: &name, LeaseDurationSeconds: &seconds, RenewTime: &now, AcquireTime: &now},
	}
}

func electorOf(t *testing.T, s *leaseServer, identity string) *elector {
	t.Helper()
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	c, err := client.New(&rest.Config{Host: server.URL, QPS: -1})
	if err != nil {
		t.Fatal(err)
	}
	return newElector(c.Leases("n"), "l", "n", identity, slog.New(slog.NewTextHandler(io.Discard, nil)))
}

// The Lease has a holder at a time, who gives it to the next at the end.
func TestALeaseHasASingleHolder(t *testing.T) {
	s := &leaseServer{}
	first, second := electorOf(t, s, "first"), electorOf(t, s, "second")
	if !first.acquire(t.Context()) {
		t.Fatal("the first does not get a Lease that is not there")
	}
	if err := second.try(t.Context()); !errors.Is(err, errHeld) {
		t.Errorf("the second tries: %v", err)
	}
	first.release(t.Context())
	ctx, cancel := context.WithTimeout(t.Context(), patience.For(20*time.Second))
	defer cancel()
	if !second.acquire(ctx) {
		t.Error("the second does not get a Lease that was given back")
	}
	if holder, transitions := s.holder(); holder != "second" || transitions != 1 {
		t.Errorf("holder %q after %d transitions", holder, transitions)
	}
	if first.release(t.Context()); second.try(t.Context()) != nil {
		t.Error("who has no Lease gave it back")
	}
}

// Two that read a free Lease at the same time do not both get it.
func TestALeaseIsTakenByOneOfTwoWhoSawItFree(t *testing.T) {
	s := &leaseServer{}
	s.set(heldBy("", 1))
	electors := []*elector{electorOf(t, s, "first"), electorOf(t, s, "second")}
	errs := make([]error, len(electors))
	var tasks sync.WaitGroup
	for i, e := range electors {
		tasks.Go(func() { errs[i] = e.try(t.Context()) })
	}
	tasks.Wait()
	holder, _ := s.holder()
	for i, e := range electors {
		if got := errs[i] == nil; got != (e.identity == holder) {
			t.Errorf("%s: %v, and the holder is %s", e.identity, errs[i], holder)
		}
	}
}

// A Lease is free when its holder has been silent by the own clock, whatever times it states.
func TestALeaseOfASilentHolderIsTaken(t *testing.T) {
	s := &leaseServer{}
	old := heldBy("gone", 1)
	past, future := metav1.NewMicroTime(time.Unix(0, 0)), metav1.NewMicroTime(time.Now().Add(time.Hour))
	old.Spec.AcquireTime, old.Spec.RenewTime = &past, &past
	s.set(old)
	e := electorOf(t, s, "next")
	if err := e.try(t.Context()); !errors.Is(err, errHeld) {
		t.Errorf("a Lease that was just seen is taken: %v", err)
	}
	old.Spec.RenewTime = &future
	e.since = time.Now().Add(-time.Second)
	if err := e.try(t.Context()); !errors.Is(err, errHeld) {
		t.Errorf("a Lease that was just renewed is taken: %v", err)
	}
	e.since = time.Now().Add(-time.Second)
	if err := e.try(t.Context()); err != nil {
		t.Errorf("a Lease whose holder is silent: %v", err)
	}
}

// Who loses the Lease knows at once, and who cannot renew it before another may take it.
func TestALostLeaseEndsItsHolder(t *testing.T) {
	for name, lose := range map[string]func(*leaseServer, *elector){
		"another has it": func(s *leaseServer, _ *elector) { s.set(heldBy("another", 15)) },
		"the API server fails": func(s *leaseServer, e *elector) {
			s.away = true
			e.renewed = time.Now().Add(retryPeriod + 100*time.Millisecond - renewDeadline)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := &leaseServer{}
			e := electorOf(t, s, "first")
			if !e.acquire(t.Context()) {
				t.Fatal("no Lease")
			}
			s.mu.Lock()
			lose(s, e)
			s.mu.Unlock()
			ctx, cancel := context.WithTimeout(t.Context(), patience.For(30*time.Second))
			defer cancel()
			if err := e.renew(ctx); !errors.Is(err, errLost) {
				t.Errorf("renew: %v", err)
			}
		})
	}
}
