package source

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"path"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weirlb/weir/cmd/weir/config"
	"github.com/weirlb/weir/cmd/weir/lastknown"
	"github.com/weirlb/weir/discovery"
	"github.com/weirlb/weir/discovery/kube"
)

// keep saves a state with the Service default/web, as of a time, for the next
// start.
func keep(t *testing.T, cfg *config.Configuration, at time.Time) {
	t.Helper()
	kc, err := ClusterConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	known := &kube.Objects{Services: []*corev1.Service{{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
		Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort, ClusterIP: "10.96.0.1",
			Ports: []corev1.ServicePort{{Port: 80, NodePort: 30080}}},
	}}}
	if err := lastknown.Save(filepath.Join(cfg.StateDir, lastknown.File), Identity(&kc), at, known); err != nil {
		t.Fatal(err)
	}
}

// runs runs c until the test ends, and returns the channel of its Updates.
func (c *Cluster) runs(t *testing.T) <-chan *discovery.Update {
	ctx, cancel := context.WithCancel(context.Background())
	updates, done := make(chan *discovery.Update, 100), make(chan error, 1)
	go func() { done <- c.Run(ctx, func(up *discovery.Update) { updates <- up }) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return updates
}

// reasonsOf are the reasons of what is wrong, a line each.
func reasonsOf(c *Cluster) string {
	var out []string
	for _, p := range c.Problems() {
		out = append(out, p.Reason)
	}
	return strings.Join(out, "\n")
}

// An API server that swallows every packet does not hold up what is known: that
// is served before any question about permissions has been given up.
func TestStateIsServedWhileTheServerAnswersNothing(t *testing.T) {
	quit := make(chan struct{})
	gaveUp := make(chan string, 100)
	cfg := configOf(t, func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-quit:
		case <-r.Context().Done():
			gaveUp <- r.URL.Path
		}
	})
	t.Cleanup(func() { close(quit) })
	keep(t, cfg, time.Now())
	c, err := start(t, cfg)
	if err != nil {
		t.Fatal(err)
	}
	up := <-c.runs(t)
	if !up.Synced || len(up.Put) != 1 {
		t.Errorf("delivered %+v", up)
	}
	if len(gaveUp) > 0 {
		t.Errorf("the question %s was given up before anything was served", <-gaveUp)
	}
}

// Permissions that are denied end a start that would serve nothing. With a last
// known state they are problems of a Weir that serves.
func TestDeniedPermissionsDoNotEndAStartWithAState(t *testing.T) {
	cfg := configOf(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch path.Base(r.URL.Path) {
		case "selfsubjectreviews":
			fmt.Fprint(w, `{"kind":"SelfSubjectReview","apiVersion":"authentication.k8s.io/v1","status":{"userInfo":{"username":"weir"}}}`)
		case "selfsubjectaccessreviews":
			fmt.Fprint(w, `{"kind":"SelfSubjectAccessReview","apiVersion":"authorization.k8s.io/v1","spec":{},"status":{"allowed":false}}`)
		default:
			w.WriteHeader(http.StatusForbidden)
		}
	})
	const denied = "weir may not list services"
	if _, err := start(t, cfg); err == nil || !strings.Contains(err.Error(), denied) {
		t.Fatalf("without a state: %v", err)
	}
	keep(t, cfg, time.Now())
	c, err := start(t, cfg)
	if err != nil {
		t.Fatalf("with a state: %v", err)
	}
	if up := <-c.runs(t); len(up.Put) != 1 {
		t.Errorf("delivered %+v", up)
	}
	for deadline := time.Now().Add(30 * time.Second); !strings.Contains(reasonsOf(c), denied); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("problems are %q", reasonsOf(c))
		}
	}
}

// Addresses of days ago may be those of other Pods.
func TestStateThatIsTooOldIsNotServed(t *testing.T) {
	none, day := 0, 24
	for _, c := range []struct {
		name   string
		limit  *int
		age    time.Duration
		served bool
	}{
		{"young", nil, 71 * time.Hour, true},
		{"old", nil, 73 * time.Hour, false},
		{"old for a day", &day, 25 * time.Hour, false},
		{"no limit", &none, 10000 * time.Hour, true},
		{"of a clock that was set back", nil, -1000 * time.Hour, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			nobody := httptest.NewServer(nil)
			nobody.Close() // refuses connections
			cfg := configAt(t, nobody.URL)
			cfg.Discovery.Kubernetes.LastKnownMaxAgeHours = c.limit
			keep(t, cfg, time.Now().Add(-c.age))
			src, err := start(t, cfg)
			if err != nil {
				t.Fatal(err)
			}
			if refused := strings.Contains(reasonsOf(src), "lastKnownMaxAgeHours"); refused == c.served {
				t.Errorf("problems are %q", reasonsOf(src))
			}
			if !c.served {
				return
			}
			if up := <-src.runs(t); len(up.Put) != 1 {
				t.Errorf("delivered %+v", up)
			}
			if age := time.Since(src.ServedGoodAt()); (age - c.age).Abs() > time.Hour {
				t.Errorf("its age is said to be %s", age)
			}
		})
	}
}

// The state is written for what this node serves.
func TestStateIsSavedForServicesWithAFrontendHere(t *testing.T) {
	name := func(n string) discovery.ServiceName { return discovery.ServiceName{Namespace: "default", Name: n} }
	inside := &discovery.Service{Name: name("inside"), ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")}}
	outside := &discovery.Service{Name: name("web"), Ports: []discovery.Port{{Port: 80, NodePort: 30080}}}
	closed := &discovery.Service{Name: name("web"), Ports: []discovery.Port{{Port: 80}}}
	served := map[discovery.ServiceName]bool{}
	c := &Cluster{}
	for i, step := range []struct {
		up   discovery.Update
		want bool
	}{
		{discovery.Update{Node: &discovery.Node{}}, true},
		{discovery.Update{Put: []*discovery.Service{inside}}, false},
		{discovery.Update{Put: []*discovery.Service{inside, outside}}, true},
		{discovery.Update{Put: []*discovery.Service{outside}}, true},
		{discovery.Update{Deleted: []discovery.ServiceName{inside.Name}}, false},
		{discovery.Update{Put: []*discovery.Service{closed}}, true},
		{discovery.Update{Put: []*discovery.Service{closed}}, false},
		{discovery.Update{Put: []*discovery.Service{outside}}, true},
		{discovery.Update{Deleted: []discovery.ServiceName{outside.Name}}, true},
	} {
		if got := c.concerns(&step.up, served); got != step.want {
			t.Errorf("step %d: %v, want %v", i+1, got, step.want)
		}
	}
	other := &discovery.Service{Name: name("other"), ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.2")}}
	c.concerns(&discovery.Update{Put: []*discovery.Service{other}}, served)
	c.Reconfigured(&config.Configuration{ClusterIPs: true}) // as a reload does
	if !c.concerns(&discovery.Update{Put: []*discovery.Service{inside}}, served) {
		t.Error("a cluster IP that is served does not count")
	}
	if !c.concerns(&discovery.Update{Deleted: []discovery.ServiceName{other.Name}}, served) {
		t.Error("a cluster IP that was served does not count when its Service is deleted")
	}
}
