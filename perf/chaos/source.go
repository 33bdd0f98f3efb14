package chaos

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/weirlb/weir/perf/netlab/patience"
)

// Sources are where Weir learns Services: from an API server, or from a directory.
var Sources = []string{"api", "manifests"}

// SourceOf returns the source of a seed. Odd seeds have the API server.
func SourceOf(seed uint64) string { return Sources[(seed+1)%uint64(len(Sources))] }

// sourceFaults are the faults of each source. They explain nothing: the last view stays.
var sourceFaults = map[string][]fault{
	"api": {
		{"dead API server", partSource, false, 500 * time.Millisecond, 4 * time.Second, (*node).killAPI, nil, nil},
		{"slow API server", partSource, false, time.Second, 4 * time.Second, (*node).slowAPI, nil, nil},
		{"black-holed API server", partSource, false, time.Second, 5 * time.Second, (*node).holeAPI, nil, nil},
	},
	"manifests": {
		{"half a manifest", partSource, false, 500 * time.Millisecond, 2 * time.Second, (*node).halveManifest, nil, nil},
		{"no manifests", partSource, false, 500 * time.Millisecond, 2 * time.Second, (*node).hideManifests, nil, nil},
	},
}

// source is where Weir learns Services.
func (c *Config) source() string { return cmp.Or(c.Source, Sources[0]) }

// makeSource makes the source with every Service, and returns the configuration of it.
func (n *node) makeSource() (discovery string, err error) {
	if n.cfg.source() == "manifests" {
		if err := os.Mkdir(n.path("manifests"), 0o755); err != nil {
			return "", err
		}
		return fmt.Sprintf("manifests: {path: %s}", n.path("manifests")), n.publish(nil)
	}
	g, err := newGate(func(address string) (net.Listener, error) { return n.Edge.Edge.Listen("tcp", address) })
	if err != nil {
		return "", err
	}
	n.api = newAPIServer(g)
	n.OnClose(n.api.Close)
	for _, name := range []string{"edge-1", "zonea", "zoneb"} {
		err = errors.Join(err, n.api.put("nodes", fmt.Appendf(nil, "{apiVersion: v1, kind: Node, metadata: {name: %s}}", name)))
	}
	for _, s := range n.services {
		err = errors.Join(err, n.api.put("services", s.render()))
	}
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: n.api.Certificate().Raw})
	kubeconfig, e := json.Marshal(object{"apiVersion": "v1", "kind": "Config", "current-context": "soak",
		"clusters": []object{{"name": "soak", "cluster": object{"server": "https://" + g.Addr().String(), "certificate-authority-data": ca}}},
		"contexts": []object{{"name": "soak", "context": object{"cluster": "soak"}}}})
	return fmt.Sprintf("kubernetes: {kubeconfig: %s}", n.path("kubeconfig")),
		errors.Join(err, e, os.WriteFile(n.path("kubeconfig"), kubeconfig, 0o600), n.publish(n.services))
}

// publish has the source tell the endpoints of Services that have changed. n.source is held, or
// nobody else is there.
func (n *node) publish(changed []*service) error {
	if n.api == nil {
		var b bytes.Buffer
		for _, s := range n.services {
			for _, document := range append([][]byte{s.render()}, s.renderSlices()...) {
				b.WriteString("---\n")
				b.Write(document)
			}
		}
		return n.replaceManifest(b.Bytes())
	}
	var documents [][]byte
	for _, s := range changed {
		documents = append(documents, s.renderSlices()...)
	}
	return n.api.put("endpointslices", documents...)
}

// replaceManifest replaces the manifest at once.
func (n *node) replaceManifest(content []byte) error {
	temp := n.path("manifests/.services.yaml.new")
	if err := os.WriteFile(temp, content, 0o644); err != nil {
		return err
	}
	return os.Rename(temp, n.manifestFile())
}

func (n *node) manifestFile() string { return n.path("manifests/services.yaml") }

// follows waits until Weir has every endpoint that the source lists, and no other. Nothing
// changes any more.
func (n *node) follows(ctx context.Context) error {
	want := map[string]bool{}
	for _, s := range n.services {
		for i, h := range hosts {
			for _, six := range []bool{false, true} {
				if s.listed[i] {
					want[fmt.Sprintf("chaos/%s %s", s.name, net.JoinHostPort(h.addr(six).String(), fmt.Sprint(echoTarget)))] = true
				}
			}
		}
	}
	// A watch that broke off begins again within half a minute.
	for deadline := time.Now().Add(patience.For(time.Minute)); ; {
		var list struct {
			Endpoints []struct {
				Service string `json:"service"`
				Address string `json:"address"`
			} `json:"endpoints"`
		}
		err := n.ask(ctx, "/v1/endpoints", &list)
		has := map[string]bool{}
		for _, e := range list.Endpoints {
			has[e.Service+" "+e.Address] = true
		}
		if err == nil && !maps.Equal(want, has) {
			err = fmt.Errorf("missing %s; too many %s", without(want, has), without(has, want))
		}
		if err == nil || time.Now().After(deadline) {
			return err
		}
		if !pause(ctx, 100*time.Millisecond) {
			return context.Cause(ctx)
		}
	}
}

// without lists the first elements of a that b does not have.
func without(a, b map[string]bool) string {
	list := slices.DeleteFunc(slices.Sorted(maps.Keys(a)), func(k string) bool { return b[k] })
	return fmt.Sprintf("%d: %s", len(list), strings.Join(list[:min(len(list), 4)], ", "))
}

// killAPI ends the API server, and starts it again with its objects.
func (n *node) killAPI(_ context.Context, hold func()) error {
	if err := n.api.gate.die(); err != nil {
		return err
	}
	hold()
	return n.api.gate.revive()
}

// slowAPI delays every read and write of the API server.
func (n *node) slowAPI(_ context.Context, hold func()) error {
	n.api.gate.slow(200 * time.Millisecond)
	hold()
	n.api.gate.open()
	return nil
}

// holeAPI swallows what goes to and from the API server, whose connections stay.
func (n *node) holeAPI(_ context.Context, hold func()) error {
	n.api.gate.hole()
	hold()
	n.api.gate.open()
	return nil
}

// halveManifest writes half of the manifest in place, as a copy that is cut short does.
func (n *node) halveManifest(_ context.Context, hold func()) error {
	n.source.Lock()
	defer n.source.Unlock()
	whole, err := os.ReadFile(n.manifestFile())
	if err != nil {
		return err
	}
	if err := os.WriteFile(n.manifestFile(), whole[:0], 0o644); err != nil {
		return err
	}
	hold()
	return n.replaceManifest(whole)
}

// hideManifests takes the directory away, as a volume that is not mounted does.
func (n *node) hideManifests(_ context.Context, hold func()) error {
	n.source.Lock()
	defer n.source.Unlock()
	if err := os.Rename(n.path("manifests"), n.path("hidden")); err != nil {
		return err
	}
	hold()
	return os.Rename(n.path("hidden"), n.path("manifests"))
}
