package fleet

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weirlb/weir/perf/netlab"
	"github.com/weirlb/weir/perf/netlab/patience"
	"github.com/weirlb/weir/perf/netlab/router"
	"github.com/weirlb/weir/perf/netlab/weirtest"
)

const wrongPassword = "another-Secret-that-is-wrong"

// The passwords of BGP sessions, that of a session that is established and a wrong one, are in no
// answer, output of a command, log, or file of a running Weir.
func TestWirePasswordsOfRoutersAreShownNowhere(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"right": password, "wrong": wrongPassword} {
		must(t, os.WriteFile(filepath.Join(dir, name), []byte(text+"\n"), 0o600))
	}
	b := newBedOf(t, 1, "{notReadySeconds: 0, timeoutSeconds: 0}\nlogging: {level: debug}\nstatusPage: {bindAddress: \"127.0.0.1:9466\"}",
		fmt.Sprintf(`speaker: bgp
  asn: %d
  peers:
  - {address: %s, asn: %d, %s %s/right}
  - {address: "%s", asn: %d, %s %s/wrong}`, router.NodeASN, netlab.Host4(netlab.FleetNet, netlab.FleetRouter), router.ASN, passwordFile, dir,
			netlab.Host6(netlab.FleetNet, netlab.FleetRouter), router.ASN, passwordFile, dir))
	n := b.nodes[0]
	ctx, cancel := context.WithTimeout(t.Context(), patience.For(40*time.Second))
	defer cancel()
	must(t, n.Until(ctx, func(ctx context.Context) error {
		s, err := n.admin.Status(ctx)
		if err == nil && (len(s.Announce.Peers) != 2 || !s.Announce.Peers[0].Established || len(s.Problems) == 0) {
			err = fmt.Errorf("%+v", s.Announce)
		}
		return err
	}))
	b.checkAnswers()
	b.checkCommands()
	must(t, n.Stop(patience.For(20*time.Second)))
	files := 0
	must(t, filepath.WalkDir(n.dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		text, err := os.ReadFile(path)
		files++
		b.checkText(path, text)
		return err
	}))
	if files < 3 {
		t.Errorf("%d files", files) // at least configuration, log and manifest
	}
}

// checkText fails if a text has a password.
func (b *bed) checkText(where string, text []byte) {
	b.t.Helper()
	for _, secret := range []string{password, wrongPassword} {
		if bytes.Contains(text, []byte(secret)) || bytes.Contains(text, []byte(base64.StdEncoding.EncodeToString([]byte(secret)))) {
			b.t.Errorf("%s has %q:\n%s", where, secret, text)
		}
	}
}

// checkAnswers looks at all answers of the API to GET, at the metrics and the status page.
func (b *bed) checkAnswers() {
	b.t.Helper()
	n := b.nodes[0]
	admin := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(n.dir, "weir.sock"))
	}}}
	inside := &http.Client{Transport: &http.Transport{DialContext: b.Nodes[0].DialContext}}
	get := func(c *http.Client, url string) []byte {
		b.t.Helper()
		r, err := c.Get(url)
		must(b.t, err)
		defer r.Body.Close()
		text, err := io.ReadAll(r.Body)
		must(b.t, err)
		if r.StatusCode != http.StatusOK || len(text) == 0 {
			b.t.Errorf("%s: %s, %s", url, r.Status, text)
		}
		b.checkText(url, text)
		return text
	}
	var doc struct {
		Paths map[string]map[string]any
	}
	must(b.t, json.Unmarshal(get(admin, "http://weir/v1/openapi.json"), &doc))
	query := map[string]string{
		"/v1/capture": "?seconds=1", "/v1/trace/live": "?seconds=1", "/v1/connections/count": "?by=client",
		"/v1/explain/address": "?address=" + vip6.String(), "/v1/profile": "?kind=goroutine",
		"/v1/trace": "?protocol=TCP&source=10.9.9.9:1000&destination=" + vip4.String() + ":8080",
	}
	asked := 0
	for path, methods := range doc.Paths {
		if _, ok := methods["get"]; ok {
			get(admin, "http://weir"+path+query[path])
			asked++
		}
	}
	if asked < 15 {
		b.t.Errorf("%d answers", asked)
	}
	get(inside, "http://127.0.0.1:9464/metrics")
	get(inside, "http://127.0.0.1:9466/")
}

// checkCommands looks at the output of commands beside a running Weir.
func (b *bed) checkCommands() {
	b.t.Helper()
	n := b.nodes[0]
	socket := filepath.Join(n.dir, "weir.sock")
	for _, line := range []string{
		"status", "status -o json", "status --announce", "status --problems", "events", "services", "doctor", "doctor -o json",
		"explain --address " + vip4.String(), "explain --address " + vip6.String() + " -o json",
		"explain --fleet --from " + socket, "check --config " + filepath.Join(n.dir, "config.yaml"),
	} {
		if !strings.Contains(line, socket) && !strings.HasPrefix(line, "check") {
			line += " --admin-socket " + socket
		}
		var out bytes.Buffer
		cmd := exec.Command(weirtest.Binary(b.t), strings.Fields(line)...)
		cmd.Stdout, cmd.Stderr = &out, &out
		p, err := b.Nodes[0].Start(cmd)
		must(b.t, err)
		<-p.Done() // some have findings, which are an exit status of their own
		if out.Len() == 0 || strings.Contains(out.String(), "unknown flag") {
			b.t.Errorf("weir %s: %v: %s", line, p.Err(), out.String())
		}
		b.checkText("weir "+line, out.Bytes())
	}
}
