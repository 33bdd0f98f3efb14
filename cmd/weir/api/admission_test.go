package api

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// users asks as several users for answers that last until they are let go.
type users struct {
	t *testing.T
	h http.Handler
	s *lasting
}

// lasting counts requests that are answered, by uid; everybody has the sum.
type lasting struct {
	fakeSource
	leave     chan bool // ends an answer
	mu        sync.Mutex
	now, most map[uint32]int
	begun     []uint32 // users, in the order of the answers
}

const everybody = ^uint32(0)

func newUsers(t *testing.T) *users {
	s := &lasting{leave: make(chan bool), now: map[uint32]int{}, most: map[uint32]int{}}
	s.status = exampleStatus()
	return &users{t, handler(s, usual, admitAll), s}
}

// ask sends a request of root or of a member of admin.group, and waits until it is answered, or
// waits itself. The result gives the answer.
func (c *users) ask(ctx context.Context, uid uint32, request string) (answer chan *httptest.ResponseRecorder) {
	method, target, _ := strings.Cut(request, " ")
	r := httptest.NewRequest(method, "http://weir"+target, nil).WithContext(context.WithValue(ctx, peerKey{}, &peer{uid: uid}))
	answer = make(chan *httptest.ResponseRecorder, 1)
	go func() {
		w := httptest.NewRecorder()
		c.h.ServeHTTP(w, r)
		answer <- w
	}()
	synctest.Wait()
	return answer
}

// begins fails the test unless the answer to a request begins at once.
func (c *users) begins(uid uint32, request string) {
	c.t.Helper()
	n := len(c.s.begun)
	c.ask(c.t.Context(), uid, request)
	if len(c.s.begun) != n+1 {
		c.t.Fatalf("uid %d, %s: it waits", uid, request)
	}
}

// isRefused fails the test unless a request waits for a time, and is then refused with the text.
func (c *users) isRefused(uid uint32, request, text string) {
	c.t.Helper()
	began := time.Now()
	w := <-c.ask(c.t.Context(), uid, request)
	if w.Code != http.StatusTooManyRequests || w.Header().Get("Retry-After") == "" || !strings.Contains(w.Body.String(), text) {
		c.t.Errorf("uid %d, %s: %d %v %s; want 429, Retry-After and %q", uid, request, w.Code, w.Header(), w.Body, text)
	}
	if waited := time.Since(began); waited != usual.wait {
		c.t.Errorf("uid %d, %s: refused after %v", uid, request, waited)
	}
}

func (s *lasting) last(ctx context.Context) {
	uid := ctx.Value(peerKey{}).(*peer).uid
	s.count(uid, 1)
	<-s.leave
	s.count(uid, -1)
}

func (s *lasting) count(uid uint32, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n > 0 {
		s.begun = append(s.begun, uid)
	}
	for _, u := range []uint32{uid, everybody} {
		s.now[u] += n
		s.most[u] = max(s.most[u], s.now[u])
	}
}

func (s *lasting) stream(ctx context.Context) (Stream, error) {
	return func(w *ObjectWriter) error {
		s.last(ctx)
		return w.Field("total", 7)
	}, nil
}

func (s *lasting) Connections(ctx context.Context, _ ConnectionQuery) (Stream, error) {
	return s.stream(ctx)
}

func (s *lasting) CountConnections(ctx context.Context, _ *FlowMatcher, _ string, _ int) (*ConnectionCount, error) {
	s.last(ctx)
	return exampleCount(), nil
}

func (s *lasting) KillConnections(ctx context.Context, _ *FlowMatcher) (*Killed, error) {
	s.last(ctx)
	return &Killed{}, nil
}

func (s *lasting) Flows(ctx context.Context, _ int, _ *FlowMatcher) (*FlowList, error) {
	s.last(ctx)
	return exampleFlows(), nil
}

func (s *lasting) Verify(ctx context.Context) (*Verification, error) {
	s.last(ctx)
	return &Verification{}, nil
}

func (s *lasting) Explain(ctx context.Context, _ ExplainQuery) (Stream, error) { return s.stream(ctx) }
func (s *lasting) Frontends(ctx context.Context) (Stream, error)               { return s.stream(ctx) }

// walkRequests look at the whole flow table.
var walkRequests = []string{
	"GET /v1/connections?client=192.0.2.1&limit=1", "GET /v1/connections?limit=0", "GET /v1/connections/count?by=service",
	"GET /v1/flows?limit=1&state=close", "GET /v1/verify", "POST /v1/connections/kill?client=192.0.2.1",
}

// Members of admin.group have two walks at a time, of two users, however many they ask for.
// Root finds room beside them.
func TestWalksOverTheFlowTableAreFew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newUsers(t)
		refused := func(uid uint32, text string) {
			t.Helper()
			for _, request := range walkRequests {
				c.isRefused(uid, request, text)
			}
		}
		c.begins(40001, walkRequests[0])
		refused(40001, "a walk over the flow table: uid 40001 has 1 under way, as many as a member of admin.group may have, and none ended within 5s: wait for its end")
		c.begins(40002, walkRequests[2])
		refused(40003, "members of admin.group have 2 under way, as many as they may have together")
		c.begins(0, walkRequests[4])
		refused(0, "3 are under way, as many as there may be")
		if w := <-c.ask(t.Context(), 40001, "GET /v1/status"); w.Code != http.StatusOK {
			t.Errorf("another request: %d %s", w.Code, w.Body)
		}
		close(c.s.leave)
		synctest.Wait()
		for uid, most := range map[uint32]int{40001: 1, 40002: 1, 40003: 0, 0: 1, everybody: 3} {
			if c.s.most[uid] != most {
				t.Errorf("uid %d: %d at a time, want %d", uid, c.s.most[uid], most)
			}
		}
		for _, request := range walkRequests { // all places are free again
			if w := <-c.ask(t.Context(), 40003, request); w.Code != http.StatusOK {
				t.Errorf("%s: %d %s", request, w.Code, w.Body)
			}
		}
	})
}

func TestRootLeavesAWalkToMembers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newUsers(t)
		c.begins(0, walkRequests[0])
		c.begins(0, walkRequests[1])
		c.isRefused(0, walkRequests[0], "root has 2 under way")
		c.begins(40001, walkRequests[0])
		close(c.s.leave)
		synctest.Wait()
	})
}

// A user with many requests that wait does not keep others waiting: users take turns.
func TestUsersTakeTurnsWithWalks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newUsers(t)
		c.begins(40001, walkRequests[0])
		c.begins(40002, walkRequests[0])
		for range maxWaiting {
			c.ask(t.Context(), 40001, walkRequests[0])
			c.ask(t.Context(), 40002, walkRequests[0])
		}
		c.ask(t.Context(), 40003, walkRequests[0])
		c.s.leave <- true
		synctest.Wait()
		if got := c.s.begun[len(c.s.begun)-1]; got != 40003 {
			t.Errorf("the next is uid %d, want that without a walk: %v", got, c.s.begun)
		}
		close(c.s.leave)
		synctest.Wait()
		if got := len(c.s.begun); got != 2*maxWaiting+3 {
			t.Errorf("%d walks, want all", got)
		}
		if c.s.most[40001] != 1 || c.s.most[40002] != 1 || c.s.most[everybody] != 2 {
			t.Errorf("at a time: %v", c.s.most)
		}
	})
}

// A request that waits ends with the client. A member has few requests that wait.
func TestWaitingForAWalkIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newUsers(t)
		c.begins(40001, walkRequests[0])
		ctx, cancel := context.WithCancel(t.Context())
		for range maxWaiting {
			if a := c.ask(ctx, 40001, walkRequests[0]); len(a) != 0 {
				t.Fatalf("does not wait: %s", (<-a).Body)
			}
		}
		a := c.ask(t.Context(), 40001, walkRequests[0])
		if len(a) == 0 {
			t.Fatal("one too many waits")
		}
		if w := <-a; w.Code != http.StatusTooManyRequests || !strings.Contains(w.Body.String(), "8 requests of uid 40001 wait already") {
			t.Errorf("one too many: %d %s", w.Code, w.Body)
		}
		cancel()
		synctest.Wait()
		a = c.ask(t.Context(), 40001, walkRequests[0])
		if len(a) != 0 {
			t.Errorf("does not wait after those that went away: %s", (<-a).Body)
		}
		close(c.s.leave)
		if w := <-a; w.Code != http.StatusOK || c.s.most[40001] != 1 || len(c.s.begun) != 2 {
			t.Errorf("after those that went away: %d %s, %d at a time, %v", w.Code, w.Body, c.s.most[40001], c.s.begun)
		}
	})
}

// An answer about all Services that a member reads slowly does not keep root from the same answer.
func TestMembersLeaveRootTheAnswersAboutAllServices(t *testing.T) {
	for _, request := range []string{"GET /v1/explain", "GET /v1/frontends"} {
		t.Run(request, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newUsers(t)
				c.begins(40001, request)
				c.begins(0, request)
				c.isRefused(40001, request, "uid 40001 has 1 under way")
				c.isRefused(40002, request, "members of admin.group have 1 under way")
				c.isRefused(0, request, "root has 1 under way")
				close(c.s.leave)
				synctest.Wait()
			})
		})
	}
}
