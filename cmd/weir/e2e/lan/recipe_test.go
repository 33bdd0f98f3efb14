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
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/weirlb/weir/perf/netlab"
	"github.com/weirlb/weir/perf/netlab/patience"
	"github.com/weirlb/weir/perf/netlab/weirtest"
	"github.com/weirlb/weir/perf/netlab/workload"
)

// recipe is a section of LAN.md with the addresses of the bed.
type recipe struct {
	config, manifest string
	commands         []string // for a shell, without comments
}

func recipeOf(t *testing.T, section string) (r recipe) {
	t.Helper()
	text, err := os.ReadFile("../../../../deploy/LAN.md")
	must(t, err)
	_, rest, ok := strings.Cut(strings.ReplaceAll(string(text), "192.0.2.", fmt.Sprintf("10.%d.0.", network)), "\n## "+section+"\n")
	rest, _, _ = strings.Cut(rest, "\n## ")
	if !ok {
		t.Fatalf("LAN.md has no section %q", section)
	}
	if parts := strings.Split(rest, "```"); len(parts) > 4 {
		r.config, r.manifest = strings.TrimPrefix(parts[1], "yaml"), strings.TrimPrefix(parts[3], "yaml")
	}
	for line := range strings.Lines(rest) {
		if command, ok := strings.CutPrefix(line, "    "); ok {
			command, _, _ = strings.Cut(command, " # ")
			r.commands = append(r.commands, strings.TrimSpace(command))
		}
	}
	return r
}

// shell runs a command of a recipe on a node, where its files have other places, and returns the
// output.
func (b *bed) shell(i int, command string) string {
	b.t.Helper()
	n, out := b.nodes[i], &strings.Builder{}
	command = strings.NewReplacer("/etc/weir/l2.key", filepath.Join(b.Dir(), "l2.key"), "/etc/weir/weir.yaml", filepath.Join(n.dir, "config.yaml"),
		"systemctl enable --now weir", "true").Replace(command)
	if strings.HasPrefix(command, "weir ") && !strings.Contains(command, "--config") {
		command += " --admin-socket " + filepath.Join(n.dir, "weir.sock")
	}
	cmd := exec.Command("sh", "-ec", command)
	cmd.Env = append(os.Environ(), "PATH="+filepath.Dir(weirtest.Binary(b.t))+":"+os.Getenv("PATH"))
	cmd.Stdout, cmd.Stderr = out, out
	p, err := n.Start(cmd)
	must(b.t, err)
	if err := p.Err(); err != nil {
		b.t.Fatalf("%s: %v\n%s", command, err, out)
	}
	return out.String()
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
			return b.Client.DialContext(ctx, network, address)
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
	r := recipeOf(t, "The address of the Kubernetes API")
	b.config, b.manifests = r.config, r.manifest
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

// The recipe of three edge nodes, as written, with its commands and that for the key: a node is the
// owner, and a drain loses no new connection.
func TestWireRecipeOfThreeEdgeNodes(t *testing.T) {
	b := newBed(t, 3, 1)
	key, r := recipeOf(t, "What a host on the link can forge"), recipeOf(t, "Three edge nodes on a LAN without a cluster")
	if len(key.commands) != 1 || len(r.commands) != 4 {
		t.Fatalf("commands %q and %q", key.commands, r.commands)
	}
	b.config, b.manifests, b.vips = r.config, r.manifest, b.vips[:1]
	b.shell(0, key.commands[0])
	for i, n := range b.nodes {
		n.dir = b.write(n.Namespace.Name())
		b.shell(i, r.commands[0])
	}
	b.startAll()
	owner := b.owner(b.vips[0])
	for i := range b.nodes {
		row := regexp.MustCompile(regexp.QuoteMeta(b.vips[0].String()) + ` +(\S+) `).FindStringSubmatch(b.shell(i, r.commands[1]))
		if want := map[bool]string{true: "owner", false: "standby"}[i == owner]; row == nil || row[1] != want {
			t.Errorf("node%d is %q, want %s", i+1, row, want)
		}
	}
	p := workload.StartProbe(b.Client, "tcp", netip.AddrPortFrom(b.vips[0], 80), probeEvery, patience.For(500*time.Millisecond))
	time.Sleep(200 * time.Millisecond)
	b.shell(owner, r.commands[2])
	b.other(b.vips[0], owner)
	b.shell(owner, r.commands[3])
	b.untilOwned()
	if got := p.End(); got.Lost > 0 || got.Sent == 0 {
		t.Errorf("%+v", got)
	}
}
