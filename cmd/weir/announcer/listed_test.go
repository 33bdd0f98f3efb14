package announcer

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/cmd/weir/config"
	"github.com/weirlb/weir/discovery/kube"
	"github.com/weirlb/weir/lb/announce"
)

// listed are the objects of a YAML stream as the API server tells them.
func listed(t *testing.T, text string) (out []kube.PoolObject) {
	t.Helper()
	for doc := range strings.SplitSeq(text, "---\n") {
		var o struct {
			Kind     string
			Metadata struct{ Name, Namespace string }
		}
		b, err := yaml.YAMLToJSON([]byte(doc))
		if err == nil {
			err = yaml.Unmarshal(b, &o)
		}
		if err != nil {
			t.Fatal(err)
		}
		if o.Kind != "" {
			out = append(out, kube.PoolObject{Kind: o.Kind, Namespace: o.Metadata.Namespace, Name: o.Metadata.Name, JSON: b})
		}
	}
	return out
}

// takes has the announcer take over objects of the API server.
func takes(t *testing.T, a *Announcer, text string) (refused string) {
	t.Helper()
	a.changing.Lock()
	defer a.changing.Unlock()
	a.input.listed, a.input.synced = listed(t, text), true
	return a.take()
}

// ofAPIServer is an announcer whose objects are of the API server.
func ofAPIServer(t *testing.T) (*Announcer, *spoken) {
	t.Helper()
	s := &spoken{}
	a := serving(s, announce.Settings{})
	c := config.Default()
	c.NodeName, c.Announce.Speaker, c.Announce.ObjectNamespaces = "edge-1", config.AnnounceBGP, []string{"metallb-system"}
	c.Announce.SettleSeconds, c.StateDir = 0, t.TempDir()
	c.Discovery = config.Discovery{Kubernetes: &config.Kubernetes{}}
	a.cfg = *c
	a.ask(announce.Node{})
	return a, s
}

// An object of the API server in error withdraws nothing, and leaves routes and sessions as they are if
// it was in use. Another in error is out of service alone: the changes of others go on.
func TestObjectsOfTheAPIServerInError(t *testing.T) {
	const (
		faulty  = "---\napiVersion: metallb.io/v1beta2\nkind: BGPPeer\nmetadata: {name: new}\nspec: {myASN: 64512, peerASN: 64513, peerAddress: 192.0.2.9, vrf: red}\n"
		layer2  = "---\napiVersion: metallb.io/v1beta1\nkind: L2Advertisement\nmetadata: {name: l2}\nspec: {}\n"
		further = "---\napiVersion: metallb.io/v1beta2\nkind: BGPPeer\nmetadata: {name: further}\nspec: {myASN: 64512, peerASN: 64513, peerAddress: 192.0.2.11}\n"
	)
	change := func(old, new string) string { return strings.Replace(poolObjects, old, new, 1) }
	for _, c := range []struct {
		name, text, fault string
		refused           bool
		pref              uint32
		neighbors         int
	}{
		{"nothing wrong", change("localPref: 120", "localPref: 130"), "", false, 130, 4},
		{"a new object", change("localPref: 120", "localPref: 130") + faulty, "BGPPeer new: spec.vrf", false, 130, 4},
		{"one of layer 2", poolObjects + layer2, "L2Advertisement l2: kind", false, 120, 4},
		{"a peer in use", change("holdTime: 30s", "vrf: red") + further, "BGPPeer edge: spec.vrf", true, 120, 4},
		{"an advertisement in use", change("localPref: 120", "localPreference: 130") + further, "localPreference", true, 120, 4},
		{"a pool in use", change("[203.0.113.0/24]", "[203.0.113.0/33]"), "203.0.113.0/33", true, 120, 4},
		{"a pool in use by another", poolObjects + strings.Replace(overlappingPool, "name: early", "name: a", 1), "overlaps", true, 120, 4},
		{"a profile in use", change("receiveInterval: 900", "echoMode: true"), "echoMode", true, 120, 4},
		{"a peer that is deleted", poolObjects[:strings.LastIndex(poolObjects, "---\napiVersion: metallb.io/v1beta2\nkind: BGPPeer\nmetadata: {name: watched}")], "", false, 120, 3},
		{"all are deleted", "", "", false, 0, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, s := ofAPIServer(t)
			if refused := takes(t, a, poolObjects); refused != "" || len(s.routes) != 2 || len(a.objects.neighbors) != 4 {
				t.Fatalf("%q, routes %+v, sessions %+v", refused, s.routes, a.objects.neighbors)
			}
			refused := takes(t, a, c.text)
			if (refused != "") != c.refused || !strings.Contains(reasons(a), c.fault) {
				t.Errorf("refused %q, problems %s", refused, reasons(a))
			}
			if len(a.objects.neighbors) != c.neighbors || (c.pref > 0) != (len(s.routes) == 2) || c.pref > 0 && *s.routes[0].LocalPref != c.pref {
				t.Errorf("routes %+v, sessions %+v", s.routes, a.objects.neighbors)
			}
			if o := a.Status().Objects; o == nil || o.Refused != refused || o.Peers != c.neighbors {
				t.Errorf("status %+v", o)
			}
			// What was in use has not been forgotten by the mistake.
			if refused := takes(t, a, poolObjects); refused != "" || len(s.routes) != 2 || *s.routes[0].LocalPref != 120 || len(a.objects.neighbors) != 4 {
				t.Errorf("mended: %q, routes %+v, sessions %+v", refused, s.routes, a.objects.neighbors)
			}
		})
	}
}

// A name of a pool in an advertisement that no pool has withdraws nothing, whether the name or the
// pool is wrong. At a start the advertisement is in use without this pool.
func TestAPoolThatIsMissingWithdrawsNothing(t *testing.T) {
	const more = "---\napiVersion: metallb.io/v1beta1\nkind: IPAddressPool\nmetadata: {name: more}\nspec: {addresses: [198.51.100.0/24]}\n"
	text := strings.Replace(poolObjects, "localPref: 120", "localPref: 120, ipAddressPools: [public, more]", 1) + more
	for name, wrong := range map[string]string{
		"a misspelled name": strings.Replace(text, "[public,", "[publik,", 1),
		"a pool is renamed": strings.Replace(text, "metadata: {name: public}", "metadata: {name: private}", 1),
	} {
		a, s := ofAPIServer(t)
		if refused := takes(t, a, text); refused != "" || len(s.routes) != 2 {
			t.Fatalf("%q, routes %+v", refused, s.routes)
		}
		if refused := takes(t, a, wrong); !strings.Contains(refused, "there is no pool publi") || len(s.routes) != 2 {
			t.Errorf("%s: %q, routes %+v", name, refused, s.routes)
		}
		a, _ = ofAPIServer(t)
		if refused := takes(t, a, wrong); refused != "" || len(a.objects.Routes) != 1 || !strings.Contains(reasons(a), "there is no pool publi") {
			t.Errorf("%s, at a start: %q, %+v, %s", name, refused, a.objects.Routes, reasons(a))
		}
	}
}

// A BGPPeer that names labels is for the nodes that have them. A change of the Node's labels has an
// effect at once.
func TestPeersFollowTheLabelsOfTheNode(t *testing.T) {
	a, _ := ofAPIServer(t)
	text := strings.Replace(poolObjects, "peerAddress: 192.0.2.3", "peerAddress: 192.0.2.3, nodeSelectors: [{matchLabels: {rack: \"7\"}}]", 1)
	for _, c := range []struct {
		labels map[string]string
		want   int
		fault  bool
	}{{nil, 3, true}, {map[string]string{"rack": "7"}, 4, false}, {map[string]string{"rack": "8"}, 3, false}} {
		a.input.labels = c.labels
		refused := takes(t, a, text)
		if fault := strings.Contains(reasons(a), "rack cannot be used"); refused != "" || len(a.objects.neighbors) != c.want || fault != c.fault {
			t.Errorf("%v: %q, %+v, %s", c.labels, refused, a.objects.neighbors, reasons(a))
		}
	}
}

// A start while the API server is away goes on with the objects of the last process, unless they
// are of another cluster or too old.
func TestLastKnownObjectsAreUsedByAStart(t *testing.T) {
	a, _ := ofAPIServer(t)
	keeper := newObjectKeeper(&a.cfg, "cluster a")
	takes(t, a, poolObjects)
	if err := keeper.save(&a.input); err != nil {
		t.Fatal(err)
	}
	start := func(cluster string) (*Announcer, *spoken) {
		next, s := ofAPIServer(t)
		next.cfg.StateDir = a.cfg.StateDir
		next.startObjects(&objectSource{PoolObjects: &kube.PoolObjects{}, kept: newObjectKeeper(&next.cfg, cluster), began: time.Now()}, slog.New(slog.DiscardHandler))
		return next, s
	}
	next, s := start("cluster a")
	if len(s.routes) != 2 || len(next.objects.neighbors) != 4 || next.waits() || next.Status().Objects.APIServer != api.ObjectsLastKnown {
		t.Errorf("routes %+v, sessions %+v, %+v", s.routes, next.objects.neighbors, next.Status().Objects)
	}
	if refused := takes(t, next, strings.Replace(poolObjects, "holdTime: 30s", "vrf: red", 1)); refused == "" || len(next.objects.neighbors) != 4 {
		t.Errorf("the first objects of the API server withdraw: %q", refused)
	}
	for name, f := range map[string]func() (*Announcer, *spoken){
		"of another cluster": func() (*Announcer, *spoken) { return start("cluster b") },
		"damaged": func() (*Announcer, *spoken) {
			if err := os.WriteFile(filepath.Join(a.cfg.StateDir, "announced-objects.json"), []byte("{"), 0o600); err != nil {
				t.Fatal(err)
			}
			return start("cluster a")
		},
	} {
		if next, _ := f(); next.objects != nil && len(next.objects.neighbors) > 0 || !next.waits() {
			t.Errorf("%s: %+v", name, next.objects)
		}
	}
}

// refusing is an API server with MetalLB's definitions that refuses every list, until allowed. Then
// it has no objects.
func refusing(t *testing.T) (rc *rest.Config, allowed *atomic.Bool) {
	t.Helper()
	allowed = new(atomic.Bool)
	kinds := map[string][]string{"v1beta2": {"BGPPeer"}, "v1beta1": {"IPAddressPool", "BGPAdvertisement", "BFDProfile", "Community"}}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		path := strings.Split(strings.TrimPrefix(r.URL.Path, "/apis/metallb.io/"), "/")
		names, ok := kinds[path[0]]
		switch {
		case !ok:
			http.NotFound(w, r)
		case len(path) == 1:
			var list []map[string]any
			for _, k := range names {
				plural := strings.Replace(strings.ToLower(k)+"s", "communitys", "communities", 1)
				list = append(list, map[string]any{"name": plural, "kind": k, "namespaced": true, "verbs": []string{"list", "watch"}})
			}
			_ = json.NewEncoder(w).Encode(map[string]any{"kind": "APIResourceList", "groupVersion": "metallb.io/" + path[0], "resources": list})
		case !allowed.Load():
			w.WriteHeader(http.StatusForbidden)
			_ = json.NewEncoder(w).Encode(map[string]any{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Forbidden", "code": 403})
		case r.URL.Query().Get("watch") != "": // begins with the list
			_, _ = io.WriteString(w, `{"type":"BOOKMARK","object":{"kind":"X","apiVersion":"x/v1","metadata":{"resourceVersion":"1","annotations":{"k8s.io/initial-events-end":"true"}}}}`)
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		default:
			_ = json.NewEncoder(w).Encode(map[string]any{"kind": "List", "apiVersion": "metallb.io/" + path[0], "metadata": map[string]any{"resourceVersion": "1"}, "items": []any{}})
		}
	}))
	t.Cleanup(server.Close)
	return &rest.Config{Host: server.URL}, allowed
}

// An API server that has just started refuses everything, as one does whose roles have a mistake.
// That withdraws nothing, and is not what the next start finds.
func TestARefusalAtTheStartKeepsTheLastKnownObjects(t *testing.T) {
	a, _ := ofAPIServer(t)
	takes(t, a, poolObjects)
	file := newObjectKeeper(&a.cfg, "c")
	if err := file.save(&a.input); err != nil {
		t.Fatal(err)
	}
	before, _ := os.ReadFile(file.path)
	next, s := ofAPIServer(t)
	next.cfg.StateDir = a.cfg.StateDir
	rc, allowed := refusing(t)
	source := &objectSource{changed: make(chan struct{}, 1), kept: newObjectKeeper(&next.cfg, "c"), began: time.Now()}
	var err error
	if source.PoolObjects, err = kube.NewPoolObjects(kube.PoolConfig{REST: rc, Namespaces: []string{""}, Changed: source.wake, Log: slog.New(slog.DiscardHandler)}); err != nil {
		t.Fatal(err)
	}
	next.startObjects(source, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); source.watch(ctx, slog.New(slog.DiscardHandler)) }()
	defer func() { cancel(); <-ended }()
	await := func(what string, ok func() bool) {
		t.Helper()
		for range 600 {
			if next.takeListed(); ok() {
				return
			}
			time.Sleep(50 * time.Millisecond)
		}
		t.Fatalf("%s: routes %+v, sessions %+v, %v", what, s.routes, next.objects.neighbors, source.Faults())
	}
	await("refused", source.Synced)
	next.takeListed()
	if len(s.routes) != 2 || len(next.objects.neighbors) != 4 || len(source.Faults()) == 0 {
		t.Errorf("a refusal withdraws: routes %+v, sessions %+v", s.routes, next.objects.neighbors)
	}
	if now, _ := os.ReadFile(file.path); string(now) != string(before) {
		t.Errorf("the next start would find %s", now)
	}
	allowed.Store(true)
	await("there are none", func() bool {
		now, _ := os.ReadFile(file.path)
		return len(next.objects.neighbors) == 0 && len(s.routes) == 0 && string(now) != string(before)
	})
}

// A node waits for the objects of its API server before it decides, and not for long.
func TestANodeWaitsForObjectsForABoundedTime(t *testing.T) {
	a, _ := ofAPIServer(t)
	if a.waits() {
		t.Error("without an API server")
	}
	a.source = &objectSource{began: time.Now()}
	if !a.waits() {
		t.Error("it does not wait")
	}
	a.source.began = time.Now().Add(-holdWithoutView)
	if a.waits() {
		t.Error("it waits for ever")
	}
}
