package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/cmd/weir/explain"
	"github.com/weirlb/weir/perf/netlab/patience"
	"github.com/weirlb/weir/perf/netlab/weirtest"
)

// matches reports the first of the patterns that no line of the text matches.
func matches(t *testing.T, text string, patterns ...string) {
	t.Helper()
	for _, p := range patterns {
		if !regexp.MustCompile("(?m)" + p).MatchString(text) {
			t.Errorf("no line matches %s in:\n%s", p, text)
		}
	}
}

// `weir explain --address` has each condition, the routers and the choice; an address that is
// drained, without endpoints, or of no Service is explained too.
func TestWireAddressIsExplained(t *testing.T) {
	b := newBed(t, 1, "{notReadySeconds: 0, timeoutSeconds: 0}")
	b.until(0)
	matches(t, b.weir("explain", "--address", vip4.String()),
		`^Node node1$`, `^Address 10\.99\.0\.10: announced to 2 of 2 routers, for `,
		`^allowed +yes`, `^not drained +yes`, `^healthy +yes`, `^eligible +yes`, `^programmed +yes`, `^served +yes`, `^settled +yes`,
		`^10\.60\.0\.1 +65000 +established +10\.99\.0\.10/32$`,
		`^TCP 10\.99\.0\.10:8080 +test/web +yes +nat +1 +[0-9a-f]{16}$`, `^Choice [0-9a-f]{16}: `)

	_, err := b.nodes[0].admin.DrainSelf(context.Background(), false)
	must(t, err)
	matches(t, b.weir("explain", "--address", vip6.String()),
		`^Address fd99::10: not announced, draining: weir drain self, for `, `^not drained +no +weir drain self`, `^programmed +yes`,
		`^10\.60\.0\.1 +65000 +established +-$`)
	b.until() // the router has heard of the drain
	_, err = b.nodes[0].admin.DrainSelf(context.Background(), true)
	must(t, err)
	b.until(0)

	b.manifest(b.nodes[0], false)
	b.until()
	var x api.AddressExplanation
	must(t, json.Unmarshal([]byte(b.weir("explain", "--address", vip4.String(), "-o", "json")), &x))
	if x.Announced || x.Reason != "not-served" || x.Node != "node1" || len(x.Conditions) < 9 || len(x.Peers) != 2 || len(x.Routes) != 0 {
		t.Errorf("without endpoints: %+v", x)
	}
	matches(t, b.weir("explain", "--address", "10.99.0.77"), `not announced, not-programmed: no frontend has this address$`)
	matches(t, b.weir("explain", "--address", "192.0.2.1"), `not announced, not-allowed: `)
}

// fleet runs `weir explain --fleet` with the status of nodes, and returns the exit status.
func (b *bed) explainFleet(from ...string) (out string, code int) {
	b.t.Helper()
	args := []string{"explain", "--fleet"}
	for _, f := range from {
		args = append(args, "--from", f)
	}
	text, err := exec.Command(weirtest.Binary(b.t), args...).CombinedOutput()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return string(text), exit.ExitCode()
	}
	must(b.t, err)
	return string(text), 0
}

// `weir explain --fleet` compares nodes by their sockets and by files with their status, and
// names the nodes that choose other endpoints.
func TestWireFleetIsExplained(t *testing.T) {
	b := newBed(t, 3, "{notReadySeconds: 0, timeoutSeconds: 0}")
	b.until(0, 1, 2)
	file := filepath.Join(b.Dir(), "node1.json")
	must(t, os.WriteFile(file, []byte(b.weir("status", "-o", "json")), 0o644))
	from := []string{file, filepath.Join(b.nodes[1].dir, "weir.sock"), filepath.Join(b.nodes[2].dir, "weir.sock")}
	out, code := b.explainFleet(from...)
	if code != 0 {
		t.Errorf("exit status %d", code)
	}
	matches(t, out, `^node2 +bgp +2$`, `^10\.99\.0\.10 +3 +alike +- +-$`, `^fd99::10 +3 +alike +- +-$`)

	other := b.nodes[2]
	manifest := filepath.Join(other.dir, "manifests", "web.yaml")
	text, err := os.ReadFile(manifest)
	must(t, err)
	moved := strings.ReplaceAll(string(text), `"10.60.0.200"`, `"10.60.0.201"`)
	must(t, os.WriteFile(manifest, []byte(moved), 0o644))
	b.endpointIs(2, "10.60.0.201:8080")
	_, err = b.nodes[1].admin.DrainSelf(context.Background(), false)
	must(t, err)
	b.until(0, 2)
	out, code = b.explainFleet(from...)
	if code != 1 {
		t.Errorf("exit status %d with nodes that differ", code)
	}
	matches(t, out, `^10\.99\.0\.10 +2 +DIFFERENT +node3 +node2 \(draining\)$`, `^fd99::10 +2 +alike +- +node2 `,
		`nodes choose differently for 10\.99\.0\.10$`)
	out, _ = b.explainFleet(from[0], from[0])
	matches(t, out, `the status of node node1 is given twice`)

	// In JSON, from standard input.
	cmd := exec.Command(weirtest.Binary(t), "explain", "--fleet", "--from", "-", "--from", from[2], "-o", "json")
	in, err := os.Open(file)
	must(t, err)
	defer in.Close()
	cmd.Stdin = in
	answer, _ := cmd.Output() // exit status 1
	var fleet explain.Fleet
	must(t, json.Unmarshal(answer, &fleet))
	if len(fleet.Nodes) != 2 || len(fleet.Addresses) != 2 || fleet.Addresses[0].Alike || !fleet.Addresses[1].Alike || len(fleet.Addresses[0].Choices) != 2 {
		t.Errorf("%+v", fleet)
	}
}

// endpointIs waits until a node's frontends of IPv4 have this endpoint.
func (b *bed) endpointIs(i int, endpoint string) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience.For(20*time.Second))
	defer cancel()
	must(b.t, b.nodes[i].Until(ctx, func(ctx context.Context) error {
		x, err := b.nodes[i].admin.ExplainAddress(ctx, vip4)
		if err == nil && (len(x.Frontends) != 1 || len(x.Frontends[0].Endpoints) != 1 || x.Frontends[0].Endpoints[0].Address != endpoint) {
			err = errors.New("the endpoint is not " + endpoint)
		}
		return err
	}))
}
