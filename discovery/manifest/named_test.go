package manifest

import (
	"log/slog"
	"net/netip"
	"path/filepath"
	"testing"

	"github.com/weirlb/weir/discovery"
)

// late are Names whose answers come while a start waits for them.
type late struct {
	discovery.NoNames
	settled bool
}

func (l *late) Settle() bool {
	l.settled = true
	return true
}

func (l *late) Answer(string, discovery.NameQuestion) (a discovery.NameAnswer) {
	if l.settled {
		a.Targets = []netip.AddrPort{netip.MustParseAddrPort("10.1.0.1:0")}
	}
	return a
}

// The first update has the endpoints of names for whose answers it has waited.
func TestTheFirstUpdateHasEndpointsByName(t *testing.T) {
	path := filepath.Join(t.TempDir(), "web.yaml")
	writeFile(t, path, `apiVersion: v1
kind: Service
metadata: {name: web}
spec: {clusterIP: 10.0.0.1, ports: [{port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, labels: {kubernetes.io/service-name: web}}
addressType: FQDN
ports: [{port: 8080}]
endpoints: [{addresses: [web.example.com]}]
`)
	s := New(Config{Path: path, Log: slog.New(slog.DiscardHandler), Store: discovery.Options{Names: &late{}}})
	must(t, s.refresh())
	updates := 0
	s.flush(func(up *discovery.Update) {
		if updates++; len(up.Put) != 1 || len(up.Put[0].Ports[0].Endpoints) != 1 {
			t.Errorf("%+v", up.Put)
		}
	})
	if updates != 1 {
		t.Errorf("%d updates", updates)
	}
}
