package process

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/weirlb/weir/cmd/weir/config"
	"github.com/weirlb/weir/cmd/weir/source"
	"github.com/weirlb/weir/discovery/kube"
)

// inDaemonSet sets the environment of the chart's Pods.
func inDaemonSet(t *testing.T) {
	t.Setenv("DAEMONSET_NAME", "weir")
	t.Setenv("POD_NAMESPACE", "weir-system")
}

// status answers with a failure, as an API server does.
func status(code int) http.HandlerFunc {
	reason := map[int]metav1.StatusReason{
		http.StatusNotFound: metav1.StatusReasonNotFound, http.StatusForbidden: metav1.StatusReasonForbidden,
		http.StatusUnauthorized: metav1.StatusReasonUnauthorized,
	}[code]
	return object(code, metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure, Code: int32(code), Reason: reason})
}

func object(code int, o any) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		_ = json.NewEncoder(w).Encode(o)
	}
}

// auto is the end of a process with onStop: auto whose API server answers so, and the log of it.
func auto(t *testing.T, answer http.HandlerFunc) (*Ending, *config.Configuration, *bytes.Buffer) {
	t.Helper()
	srv := httptest.NewServer(answer)
	t.Cleanup(srv.Close)
	log := &bytes.Buffer{}
	cfg := config.Default()
	e := NewEnding(idle{cfg}, func() {}, nil, nil, slog.New(slog.NewTextHandler(log, nil)))
	cfg.OnStop, cfg.Discovery.Kubernetes = config.StopAuto, &config.Kubernetes{}
	src, err := kube.New(kube.Config{REST: &rest.Config{Host: srv.URL}, DaemonSet: source.OwnDaemonSet(), Log: e.log})
	if err != nil {
		t.Fatal(err)
	}
	e.Sourced(&source.Cluster{Source: src})
	return e, cfg, log
}

// endBy ends the process by signals; it reports whether that is for a restart.
func (e *Ending) endBy(t *testing.T, signals ...os.Signal) bool {
	all := make(chan os.Signal, 2)
	for _, s := range signals {
		all <- s
	}
	e.Follow(t.Context(), all)
	return e.leaving.Load()
}

// hangs answers nothing until the client has gone.
func hangs(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }

func TestTermOfADaemonSetsPod(t *testing.T) {
	inDaemonSet(t)
	set := appsv1.DaemonSet{TypeMeta: metav1.TypeMeta{APIVersion: "apps/v1", Kind: "DaemonSet"}}
	now := metav1.Now()
	ending := set
	ending.DeletionTimestamp = &now
	var tasks sync.WaitGroup
	for _, tt := range []struct {
		name   string
		answer http.HandlerFunc
		leaves bool
		says   string
	}{
		{"rollout", object(http.StatusOK, set), true, "level=INFO msg=\"SIGTERM is a restart"},
		{"deleted", status(http.StatusNotFound), false, "no Pod follows on this node\" reason=\"DaemonSet weir-system/weir is deleted"},
		{"being deleted", object(http.StatusOK, ending), false, "is being deleted"},
		{"403", status(http.StatusForbidden), true, "run `weir cleanup` on this node"},
		{"401", status(http.StatusUnauthorized), true, "run `weir cleanup` on this node"},
		{"an error of the server", status(http.StatusInternalServerError), true, "run `weir cleanup` on this node"},
		{"no answer", hangs, true, "run `weir cleanup` on this node"},
	} {
		e, _, log := auto(t, tt.answer)
		tasks.Go(func() { // side by side: some take all of askTime
			leaves := e.endBy(t, syscall.SIGTERM)
			if said := log.String(); leaves != tt.leaves || !strings.Contains(said, tt.says) {
				t.Errorf("%s: for a restart %v, want %v, and a log with %q:\n%s", tt.name, leaves, tt.leaves, tt.says, said)
			}
		})
	}
	tasks.Wait()
}

// Where nothing can be asked, or held, auto is detach. A line at the start says why.
func TestTermWithoutADaemonSet(t *testing.T) {
	for _, tt := range []struct {
		name, says string
		edit       func(*testing.T, *config.Configuration)
	}{
		{"manifests", "no cluster", func(_ *testing.T, c *config.Configuration) { c.Discovery.Kubernetes = nil }},
		{"no hold", "death.holdSeconds is 0", func(_ *testing.T, c *config.Configuration) { c.Death.HoldSeconds = 0 }},
		{"no name", "DAEMONSET_NAME", func(t *testing.T, _ *config.Configuration) { t.Setenv("DAEMONSET_NAME", "") }},
		{"no namespace", "POD_NAMESPACE", func(t *testing.T, _ *config.Configuration) { t.Setenv("POD_NAMESPACE", "") }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inDaemonSet(t)
			e, cfg, log := auto(t, hangs)
			tt.edit(t, cfg)
			WarnOfOnStop(cfg, e.log)
			if said := log.String(); !strings.Contains(said, tt.says) {
				t.Errorf("the log does not say %q:\n%s", tt.says, said)
			}
			if e.endBy(t, syscall.SIGTERM) {
				t.Error("it leaves for a restart")
			}
		})
	}
}

// A signal or `weir stop` during the question decides.
func TestTermIsOverruledWhileItIsAskedFor(t *testing.T) {
	inDaemonSet(t)
	for _, tt := range []struct {
		second os.Signal
		leaves bool
	}{
		{syscall.SIGTERM, false},
		{os.Interrupt, false},
		{syscall.SIGUSR2, true},
		{nil, false}, // weir stop
	} {
		asked := make(chan struct{}, 10)
		e, _, _ := auto(t, func(w http.ResponseWriter, r *http.Request) {
			asked <- struct{}{}
			hangs(w, r)
		})
		signals := make(chan os.Signal, 2)
		signals <- syscall.SIGTERM
		go func() {
			<-asked
			if tt.second != nil {
				signals <- tt.second
			} else if err := e.Stop(t.Context()); err != nil {
				t.Error(err)
			}
		}()
		e.Follow(t.Context(), signals)
		if got := e.leaving.Load(); got != tt.leaves {
			t.Errorf("%v: for a restart %v, want %v", tt.second, got, tt.leaves)
		}
	}
}

// SIGTERM during a start that has not got so far as to have a source ends as a restart: the
// connections of the Pod before may wait.
func TestTermBeforeTheSource(t *testing.T) {
	inDaemonSet(t)
	e, _, log := auto(t, hangs)
	e.sourced = make(chan struct{})
	if !e.endBy(t, syscall.SIGTERM) || !strings.Contains(log.String(), "not ready yet") {
		t.Errorf("it does not leave for a restart, or does not say why:\n%s", log)
	}
}
