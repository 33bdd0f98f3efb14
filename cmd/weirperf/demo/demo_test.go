package demo

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/cmd/weir/config"
	"github.com/weirlb/weir/cmd/weir/explain"
	"github.com/weirlb/weir/perf/netlab/workload"
)

// What the phases demand is what `weir explain` says of their manifests.
func TestPhasesAreWhatExplainSays(t *testing.T) {
	for _, p := range phases {
		t.Run(string(p.letter), func(t *testing.T) {
			dir := t.TempDir()
			if err := writeManifests(dir, p.state); err != nil {
				t.Fatal(err)
			}
			var out bytes.Buffer
			cmd := explain.Command()
			cmd.SetArgs([]string{"-f", dir, "--node", "edge-1", "-o", "json"})
			cmd.SetOut(&out)
			cmd.SetErr(io.Discard)
			if err := cmd.Execute(); err != nil {
				t.Fatal(err)
			}
			var got struct {
				Services []struct {
					Namespace, Name string
					Ports           []struct {
						Protocol string
						Cluster  struct {
							Tier      string
							Endpoints []string
						}
					}
				}
			}
			if err := json.Unmarshal(out.Bytes(), &got); err != nil {
				t.Fatalf("%v\n%s", err, &out)
			}
			if len(got.Services) != 1 || got.Services[0].Namespace+"/"+got.Services[0].Name != serviceName {
				t.Fatalf("services %+v", got.Services)
			}
			for _, port := range got.Services[0].Ports {
				want := append(p.endpoints(false, port.Protocol), p.endpoints(true, port.Protocol)...)
				slices.Sort(want)
				slices.Sort(port.Cluster.Endpoints)
				if port.Cluster.Tier != p.tier || !slices.Equal(port.Cluster.Endpoints, want) {
					t.Errorf("%s: %+v, want %v of tier %s", port.Protocol, port.Cluster, want, p.tier)
				}
			}
		})
	}
}

func TestConfigIsValid(t *testing.T) {
	file := t.TempDir() + "/config.yaml"
	if err := writeConfig(file, "/manifests", "/weir.sock", "/conntrack"); err != nil {
		t.Fatal(err)
	}
	c, err := config.Read(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Validate().Err(); err != nil {
		t.Error(err)
	}
}

func TestJudgeComparesEveryFrontend(t *testing.T) {
	p := phases[0]
	good := func() []api.Frontend {
		var out []api.Frontend
		for _, f := range frontendAddrs() {
			for protocol, port := range map[string]uint16{"TCP": f.http, "UDP": f.echo} {
				fe := api.Frontend{Service: serviceName, Protocol: protocol, Tier: p.tier,
					Address: fmt.Sprintf("%s:%d", f.addr, port)}
				if f.addr.Is6() {
					fe.Address = fmt.Sprintf("[%s]:%d", f.addr, port)
				}
				for _, e := range p.endpoints(f.addr.Is6(), protocol) {
					fe.Endpoints = append(fe.Endpoints, api.FrontendEndpoint{Address: e})
				}
				out = append(out, fe)
			}
		}
		return append(out, api.Frontend{Service: "other/service"})
	}
	if err := judge(good(), p); err != nil {
		t.Errorf("good frontends: %v", err)
	}
	for name, spoil := range map[string]func([]api.Frontend) []api.Frontend{
		"missing frontend":  func(f []api.Frontend) []api.Frontend { return f[1:] },
		"other tier":        func(f []api.Frontend) []api.Frontend { f[3].Tier = "all"; return f },
		"missing endpoint":  func(f []api.Frontend) []api.Frontend { f[2].Endpoints = f[2].Endpoints[1:]; return f },
		"unreadable":        func(f []api.Frontend) []api.Frontend { f[0].Address = "nonsense"; return f },
		"none at all":       func([]api.Frontend) []api.Frontend { return nil },
		"the phase's other": func(f []api.Frontend) []api.Frontend { f[5].Endpoints[0].Address = "10.30.0.12:8080"; return f },
	} {
		if judge(spoil(good()), p) == nil {
			t.Errorf("%s was not noticed", name)
		}
	}
}

// outcome of n requests, all answered by one server or all failed alike.
type outcome struct {
	n      int
	server string
	err    error
}

func record(outcomes ...outcome) *workload.Record {
	r := &workload.Record{}
	for _, o := range outcomes {
		for range o.n {
			r.Add(o.server, 1, o.err)
		}
	}
	return r
}

func TestFaultsOfAPhase(t *testing.T) {
	refused, reset := error(syscall.ECONNREFUSED), error(syscall.ECONNRESET)
	good := []outcome{{10, "web-edge", nil}, {10, "web-zone-a", nil}}
	for _, c := range []struct {
		name             string
		phase            int
		keepAlive        bool
		changing, steady []outcome
		want             string // part of the only fault, "" for none
	}{
		{name: "all well", phase: 0, steady: good},
		{name: "one failure", phase: 0, steady: append(good, outcome{1, "", reset}), want: "1 reset"},
		{name: "no requests", phase: 0, want: "no requests"},
		{name: "a stranger", phase: 0, steady: append(good, outcome{1, "web-zone-b", nil}), want: "web-zone-b took 1"},
		{name: "one endpoint is left out", phase: 0, steady: good[:1], want: "web-zone-a took 0"},
		{name: "a failure during the change", phase: 1, changing: []outcome{{1, "", refused}},
			steady: []outcome{{5, "web-zone-b", nil}}, want: "while the endpoints changed"},
		{name: "an old connection stays with its server", phase: 1, keepAlive: true, steady: good},
		{name: "refused", phase: 3, changing: []outcome{{3, "web-zone-b", nil}}, steady: []outcome{{5, "", refused}}},
		{name: "refused too late", phase: 3, steady: []outcome{{5, "", refused}, {1, "", errTimeout{}}}, want: "1 timeout"},
		{name: "an old connection breaks", phase: 3, keepAlive: true, steady: []outcome{{1, "", reset}}, want: "1 reset"},
		{name: "still refused while it recovers", phase: 4, changing: []outcome{{4, "", refused}}, steady: good},
		{name: "a reset while it recovers", phase: 4, changing: []outcome{{4, "", reset}}, steady: good, want: "4 reset"},
	} {
		t.Run(c.name, func(t *testing.T) {
			res := &result{rows: []row{{stream: &stream{name: "HTTP", keepAlive: c.keepAlive},
				changing: record(c.changing...), steady: record(c.steady...)}}}
			faults := res.faults(phases[c.phase])
			if c.name == "no requests" {
				faults = faults[:1] // nobody got connections either
			}
			switch {
			case c.want == "" && len(faults) > 0:
				t.Errorf("faults %q", faults)
			case c.want != "" && (len(faults) != 1 || !strings.Contains(faults[0], c.want)):
				t.Errorf("faults %q, want one with %q", faults, c.want)
			}
		})
	}
	res := &result{broken: []error{nil, errors.New("reset by peer")}}
	if faults := res.faults(phases[0]); len(faults) != 1 || !strings.Contains(faults[0], "download 2 broke") {
		t.Errorf("faults %q", faults)
	}
}

type errTimeout struct{}

func (errTimeout) Error() string   { return "timed out" }
func (errTimeout) Timeout() bool   { return true }
func (errTimeout) Temporary() bool { return true }

// Packets that took another way than through Weir show in the accounts, and
// so do packets that Weir took and lost; neighbor discovery does not.
func TestAccounts(t *testing.T) {
	for _, c := range []struct {
		name string
		c    counts
		want string
	}{
		{"all through Weir", counts{clientSent: 60_000, clientGot: 40_000, weirGot: 99_000, refused: 990}, ""},
		{"all through Weir, most by the kernel", counts{clientSent: 60_000, clientGot: 40_000, weirGot: 9_000, repeated: 91_000}, ""},
		{"some past Weir", counts{clientSent: 60_000, clientGot: 40_000, weirGot: 90_000}, "some went another way"},
		{"some lost", counts{clientSent: 60_000, clientGot: 40_000, weirGot: 110_000}, "some were lost"},
		{"a wrong checksum", counts{csumErrors: map[string]uint64{"pod": 2}}, "wrong checksum arrived in namespace pod"},
	} {
		faults := c.c.faults()
		if c.want == "" && len(faults) > 0 || c.want != "" && (len(faults) != 1 || !strings.Contains(faults[0], c.want)) {
			t.Errorf("%s: %q", c.name, faults)
		}
	}
}

// A slow machine gets to the end of the long downloads, however long the phases are.
func TestDownloadsDoNotGrowWithThePhases(t *testing.T) {
	for _, lasting := range []time.Duration{time.Second, 25 * time.Second, time.Hour} {
		d := newDownload(nil, frontendAddrs()[0], 0, lasting)
		if d.Bytes != downloadBytes {
			t.Errorf("%v: %d bytes", lasting, d.Bytes)
		}
		if takes := float64(d.Bytes) / float64(d.Rate); takes < lasting.Seconds() || takes > 1.01*lasting.Seconds() {
			t.Errorf("%v: takes %.1f s", lasting, takes)
		}
	}
}
