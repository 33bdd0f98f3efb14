package lan

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/weirlb/weir/perf/netlab"
	"github.com/weirlb/weir/perf/netlab/patience"
)

// recipe is the configuration and the manifest of a section of LAN.md, with the addresses of the bed.
func recipe(t *testing.T, section string) (config, manifest string) {
	t.Helper()
	text, err := os.ReadFile("../../../../deploy/LAN.md")
	must(t, err)
	_, rest, ok := strings.Cut(strings.ReplaceAll(string(text), "192.0.2.", fmt.Sprintf("10.%d.0.", network)), "\n## "+section+"\n")
	if parts := strings.Split(rest, "```"); ok && len(parts) > 4 {
		return strings.TrimPrefix(parts[1], "yaml"), strings.TrimPrefix(parts[3], "yaml")
	}
	t.Fatalf("LAN.md has no section %q with two files", section)
	return "", ""
}

// apiServer stands for the API server of a node: it has a certificate and /readyz, and says who it is.
type apiServer struct{ unready atomic.Bool }

func (a *apiServer) serve(b *bed, n *node) {
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/readyz" && a.unready.Load() {
			w.WriteHeader(http.StatusInternalServerError)
		}
		_, _ = io.WriteString(w, n.Namespace.Name())
	}))
	l, err := n.Listen("tcp", ":6443")
	must(b.t, err)
	_ = s.Listener.Close()
	s.Listener = l
	s.Config.ErrorLog = nil
	s.StartTLS()
	b.OnClose(func() error { s.Close(); return nil })
}

// ask asks the API at an address over a new connection: which node answers?
func (b *bed) ask(a netip.Addr) (string, error) {
	c := http.Client{Timeout: patience.For(3 * time.Second), Transport: &http.Transport{
		DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // of the test
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			return b.client.DialContext(ctx, network, address)
		},
	}}
	r, err := c.Get("https://" + netip.AddrPortFrom(a, 6443).String() + "/version")
	if err != nil {
		return "", err
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	return string(text), err
}

// The recipe for the address of the Kubernetes API, as written: API servers on the nodes share it,
// one that is not ready gets no new connection, and another node takes it when its owner dies.
func TestWireRecipeOfTheKubernetesAPI(t *testing.T) {
	b := newBed(t, 3, 0)
	b.config, b.manifests = recipe(t, "The address of the Kubernetes API")
	a := netlab.Host4(network, 99)
	b.vips = []netip.Addr{a}
	servers := make([]apiServer, len(b.nodes))
	for i, n := range b.nodes {
		servers[i].serve(b, n)
	}
	b.startAll()
	answers := func(n int) map[string]int {
		seen := map[string]int{}
		for range n {
			who, err := b.ask(a)
			must(t, err)
			seen[who]++
		}
		return seen
	}
	b.until("all API servers answer", func() bool { return len(answers(20)) == 3 })
	owner := b.owner(a)
	name := b.nodes[owner].Namespace.Name()
	servers[owner].unready.Store(true)
	b.until("one that is not ready gets no connection", func() bool { return answers(20)[name] == 0 })
	servers[owner].unready.Store(false)
	b.until("it is ready again", func() bool { return answers(20)[name] > 0 })
	must(t, b.nodes[owner].Signal(syscall.SIGKILL))
	b.other(a, owner)
	b.until("the API is there", func() bool { _, err := b.ask(a); return err == nil })
	if seen := answers(30); len(seen) != 3 {
		t.Errorf("the API servers of all nodes go on: %v", seen)
	}
}

// The recipe of three edge nodes, as written.
func TestWireRecipeOfThreeEdgeNodes(t *testing.T) {
	b := newBed(t, 3, 1)
	b.config, b.manifests = recipe(t, "Three edge nodes on a LAN without a cluster")
	b.vips = b.vips[:1]
	b.startAll()
	l, err := b.client.DialContext(t.Context(), "tcp", netip.AddrPortFrom(vip4(0), 80).String())
	must(t, err)
	_ = l.Close()
}
