package controller

import (
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weirlb/weir/perf/netlab/patience"
)

// A controller that cannot lead, or that has lost the Lease, ends: its supervisor starts another.
func TestAControllerEndsWithItsFault(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		refuse(w, http.StatusForbidden, metav1.StatusReasonForbidden)
	}))
	defer server.Close()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	text := `{apiVersion: v1, kind: Config, current-context: a, contexts: [{name: a, context: {cluster: a, user: a}}],
  clusters: [{name: a, cluster: {server: "` + server.URL + `"}}], users: [{name: a, user: {}}]}`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		o := Options{Kubeconfig: file, Metrics: server.Listener.Addr().String()} // which is in use
		ended <- Run(t.Context(), o, slog.New(slog.NewTextHandler(io.Discard, nil)))
	}()
	select {
	case err := <-ended:
		if err == nil {
			t.Error("it ends without an error")
		}
	case <-time.After(patience.For(5 * time.Second)):
		t.Fatal("it goes on with its fault")
	}
}
