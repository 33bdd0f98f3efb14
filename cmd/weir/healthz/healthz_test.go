package healthz

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"
)

type health Health

func (h health) Health() Health { return Health(h) }

func TestHealth(t *testing.T) {
	old := time.Now().Add(-time.Hour).UTC().Truncate(time.Second)
	good := health{Healthy: true, Synced: true, NodeEligible: true, LastUpdated: old}
	with := func(edit func(*health)) health { h := good; edit(&h); return h }
	for _, tt := range []struct {
		name                   string
		health                 health
		healthz, livez, readyz int
		reason                 string
	}{
		{"all is well", good, 200, 200, 200, ""},
		{"a worker hangs", with(func(h *health) { h.Healthy, h.Reason = false, "worker 1 has stopped" }), 503, 503, 503, "worker 1 has stopped"},
		{"not synced", with(func(h *health) { h.Synced = false }), 503, 200, 503, "waiting for the first full view of Services"},
		{"draining", with(func(h *health) { h.Draining = true }), 503, 200, 503, "draining"},
		{"an interface is absent", with(func(h *health) { h.Absent = "interface eth0 is gone" }), 503, 200, 503, "interface eth0 is gone"},
		{"the node goes away", with(func(h *health) { h.NodeEligible = false }), 503, 200, 200, "the node is going away"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := Handler(tt.health)
			for path, want := range map[string]int{"/healthz": tt.healthz, "/livez": tt.livez, "/readyz": tt.readyz} {
				w := httptest.NewRecorder()
				h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
				var body struct {
					LastUpdated, CurrentTime time.Time
					NodeEligible             *bool
					Ready                    bool
					Reason                   string
				}
				if err := json.Unmarshal(w.Body.Bytes(), &body); err != nil {
					t.Fatalf("%s: %v in %s", path, err, w.Body)
				}
				if w.Code != want {
					t.Errorf("%s: %d, want %d", path, w.Code, want)
				}
				if want != 200 && body.Reason != tt.reason {
					t.Errorf("%s: reason %q, want %q", path, body.Reason, tt.reason)
				}
				switch path {
				case "/readyz":
					if body.Ready != (want == 200) {
						t.Errorf("%s: %s", path, w.Body)
					}
					continue
				case "/livez":
					if body.NodeEligible != nil {
						t.Errorf("%s speaks of the node: %s", path, w.Body)
					}
				case "/healthz":
					if body.NodeEligible == nil {
						t.Errorf("%s does not speak of the node: %s", path, w.Body)
					}
				}
				// As kube-proxy has it: recent while well, else the truth.
				if recent := body.LastUpdated.Equal(body.CurrentTime); recent != (want == 200) {
					t.Errorf("%s: lastUpdated %v, currentTime %v", path, body.LastUpdated, body.CurrentTime)
				}
				if want != 200 && !body.LastUpdated.Equal(old) {
					t.Errorf("%s: lastUpdated %v, want %v", path, body.LastUpdated, old)
				}
			}
		})
	}
}
