package fleet

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/perf/netlab/patience"
	"github.com/weirlb/weir/perf/netlab/weirtest"
)

// hangs is for how long the publication hangs at least.
const hangs = time.Second

// A publication that hangs, here because nobody reads the log, takes nothing from others: routes
// stay, probes are answered, and a scrape says for how long the update has been pending.
func TestWireAPublicationThatHangsWithdrawsNothing(t *testing.T) {
	b := newRouted(t, 1, "speaker: kernel")
	b.serve()
	n := b.configure(0, "{notReadySeconds: 0, timeoutSeconds: 0}")
	text, err := os.ReadFile(n.config())
	must(t, err)
	must(t, os.WriteFile(n.config(), append(text, "logging: {level: debug}\n"...), 0o644))
	r, w, err := os.Pipe()
	must(t, err)
	defer r.Close()
	_, err = unix.FcntlInt(w.Fd(), unix.F_SETPIPE_SZ, 4096)
	must(t, err)
	cmd := exec.Command(weirtest.Binary(t), "run", "--config", n.config())
	cmd.Stderr = w
	p, err := b.Nodes[0].Start(cmd)
	must(t, err)
	_ = w.Close()
	read := make(chan error, 1)
	readLog := func() {
		must(t, r.SetReadDeadline(time.Time{}))
		go func() { _, err := io.Copy(io.Discard, r); read <- err }()
	}
	readLog()
	defer func() { must(t, p.Stop(patience.For(20*time.Second))) }()
	n.another(t, 8999)
	routes := []string{vip4.String() + "/32", vip4.Next().String() + "/32", vip6.String() + "/128"}
	b.untilRoutes(routes...)

	c := http.Client{Timeout: patience.For(30 * time.Second), Transport: &http.Transport{DialContext: b.Nodes[0].DialContext, DisableKeepAlives: true}}
	get := func(address string) (int, string) {
		t.Helper()
		res, err := c.Get("http://127.0.0.1:" + address)
		must(t, err)
		defer res.Body.Close()
		body, err := io.ReadAll(res.Body)
		must(t, err)
		return res.StatusCode, string(body)
	}
	metric := regexp.MustCompile(`(?m)^weir_update_pending_seconds (.*)$`)
	pending := func() float64 {
		t.Helper()
		code, body := get("9464/metrics")
		m := metric.FindStringSubmatch(body)
		if code != http.StatusOK || m == nil {
			t.Fatalf("the metrics: %d %s", code, body)
		}
		age, err := strconv.ParseFloat(m[1], 64)
		must(t, err)
		return age
	}
	must(t, r.SetReadDeadline(time.Now()))
	<-read
	ctx, cancel := context.WithTimeout(t.Context(), patience.For(60*time.Second))
	defer cancel()
	for i := 0; pending() < hangs.Seconds(); i++ {
		must(t, ctx.Err())
		n.another(t, 9000+i)
		time.Sleep(100 * time.Millisecond)
	}
	for _, probe := range []string{"/livez", "/readyz", "/healthz"} {
		if code, body := get("9465" + probe); code != http.StatusOK {
			t.Errorf("%s: %d %s", probe, code, body)
		}
	}
	if got := b.announcedRoutes(); !slices.Equal(got, routes) {
		t.Errorf("routes %v, want %v", got, routes)
	}
	readLog()
	for pending() > 0 {
		must(t, ctx.Err())
		time.Sleep(100 * time.Millisecond)
	}
}

// another writes a Service with another address and a port.
func (n *node) another(t *testing.T, port int) {
	t.Helper()
	text := fmt.Sprintf(`apiVersion: v1
kind: Service
metadata: {namespace: test, name: another}
spec:
  type: LoadBalancer
  allocateLoadBalancerNodePorts: false
  clusterIP: 10.96.0.11
  clusterIPs: [10.96.0.11]
  ports: [{port: %d, targetPort: %d}]
status: {loadBalancer: {ingress: [{ip: %s, ipMode: VIP}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: test, name: another-4, labels: {kubernetes.io/service-name: another}}
addressType: IPv4
ports: [{name: "", port: %d, protocol: TCP}]
endpoints: [{addresses: ["10.60.0.9"], conditions: {ready: true}}]
`, port, port, vip4.Next(), port)
	file := filepath.Join(n.dir, "manifests", "another.yaml")
	must(t, os.WriteFile(file+".new", []byte(text), 0o644))
	must(t, os.Rename(file+".new", file))
}
