package source

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/weirlb/weir/cmd/weir/config"
	"github.com/weirlb/weir/cmd/weir/lastknown"
	"github.com/weirlb/weir/cmd/weir/problem"
	"github.com/weirlb/weir/discovery"
	"github.com/weirlb/weir/discovery/kube"
)

func TestStateOfAnotherClusterOrChoiceIsAnother(t *testing.T) {
	file := filepath.Join(t.TempDir(), "ca")
	if err := os.WriteFile(file, []byte("one"), 0o600); err != nil {
		t.Fatal(err)
	}
	base := func() *kube.Config { return &kube.Config{REST: &rest.Config{Host: "https://10.96.0.1:443"}} }
	edits := map[string]func(*kube.Config){
		"as it is":    func(*kube.Config) {},
		"server":      func(c *kube.Config) { c.REST.Host = "https://10.96.0.2:443" },
		"authority":   func(c *kube.Config) { c.REST.CAData = []byte("two") },
		"proxy name":  func(c *kube.Config) { c.Store = discovery.Options{ServiceProxyName: "weir"} },
		"selector":    func(c *kube.Config) { c.LabelSelector = "a=b" },
		"endpoints":   func(c *kube.Config) { c.LegacyEndpoints = true },
		"file's name": func(c *kube.Config) { c.REST.CAFile = file },
	}
	seen := map[string]string{}
	for name, edit := range edits {
		c := base()
		edit(c)
		id := Identity(c)
		if other, ok := seen[id]; ok {
			t.Errorf("%s and %s are the same: %s", name, other, id)
		}
		seen[id] = name
	}
	a, b := base(), base()
	a.REST.CAFile, b.REST.CAData = file, []byte("one")
	if Identity(a) != Identity(b) {
		t.Errorf("the same authority from a file and from the kubeconfig differ:\n%s\n%s", Identity(a), Identity(b))
	}
}

// clusterConfig is of a server that answers everything with status.
func clusterConfig(t *testing.T, status int) *config.Configuration {
	t.Helper()
	return configOf(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) })
}

// configOf is of a server that answers as answer does.
func configOf(t *testing.T, answer http.HandlerFunc) *config.Configuration {
	t.Helper()
	srv := httptest.NewServer(answer)
	t.Cleanup(srv.Close)
	return configAt(t, srv.URL)
}

// configAt is of the server at a URL.
func configAt(t *testing.T, url string) *config.Configuration {
	t.Helper()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	text := `{"apiVersion":"v1","kind":"Config","clusters":[{"name":"c","cluster":{"server":"` + url + `"}}],
"contexts":[{"name":"c","context":{"cluster":"c","user":""}}],"current-context":"c"}`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg := config.Default()
	cfg.NodeName, cfg.StateDir = "edge-1", t.TempDir()
	cfg.Discovery.Kubernetes = &config.Kubernetes{Kubeconfig: file}
	return cfg
}

func start(t *testing.T, cfg *config.Configuration) (*Cluster, error) {
	t.Helper()
	return newCluster(t.Context(), cfg, ReachOf(cfg), func() func() { return func() {} }, slog.New(slog.DiscardHandler))
}

// Unknown credentials end a start that would serve nothing, and only that.
func TestUnknownCredentialsEndAStartWithNothingToServe(t *testing.T) {
	cfg := clusterConfig(t, http.StatusUnauthorized)
	if _, err := start(t, cfg); err == nil || !strings.Contains(err.Error(), kube.ErrCredentials.Error()) {
		t.Fatalf("got %v", err)
	}
	kc, err := ClusterConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	known := &kube.Objects{Nodes: []*corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "edge-1"}}}}
	if err := lastknown.Save(filepath.Join(cfg.StateDir, lastknown.File), Identity(&kc), time.Now(), known); err != nil {
		t.Fatal(err)
	}
	if _, err := start(t, cfg); err != nil {
		t.Errorf("with a last known state: %v", err)
	}
}

// Answers of the DNS that cannot be read are a problem until others are saved, and no reason to fail.
func TestCorruptAnswersAreAnErrorInTheStatus(t *testing.T) {
	cfg := config.Default()
	cfg.StateDir, cfg.Discovery.Kubernetes = t.TempDir(), nil
	cfg.Discovery.Manifests = &config.Manifests{Path: t.TempDir()}
	file := filepath.Join(cfg.StateDir, lastknown.NamesFile)
	if err := os.WriteFile(file, []byte("rubbish"), 0o600); err != nil {
		t.Fatal(err)
	}
	src, err := New(t.Context(), cfg, ReachOf(cfg), func() func() { return func() {} }, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	list := src.Problems()
	if len(list) != 1 || list[0].Kind != problem.StateFile || !strings.Contains(list[0].Reason, "answers of the DNS: "+file+": corrupt: 7 bytes are too few: set aside as "+file+".corrupt") {
		t.Errorf("problems are %v", list)
	}
}

func TestCorruptStateIsAnErrorInTheStatus(t *testing.T) {
	cfg := clusterConfig(t, http.StatusServiceUnavailable)
	file := filepath.Join(cfg.StateDir, lastknown.File)
	if err := os.WriteFile(file, []byte("rubbish"), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := start(t, cfg)
	if err != nil {
		t.Fatal(err)
	}
	list := c.Problems()
	if len(list) != 1 || list[0].Kind != problem.StateFile || !strings.Contains(list[0].Reason, "set aside as "+file+".corrupt") {
		t.Errorf("problems are %v", list)
	}
}
