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
	"sync"
	"time"

	"github.com/weirlb/weir/perf/netlab"
	"github.com/weirlb/weir/perf/netlab/patience"
)

// Sources are where Weir learns Services: from an API server, or from a directory.
var Sources = []string{"api", "manifests"}

// SourceOf returns the source of a seed. Odd seeds have the API server.
func SourceOf(seed uint64) string { return Sources[(seed+1)%uint64(len(Sources))] }

// sourceFaults are the faults of each source. They explain nothing: the last view stays.
var sourceFaults = map[string][]fault{
	"api": {
		{"dead API server", partSource, false, 500 * time.Millisecond, 4 * time.Second, ofSource((*source).killAPI), nil, nil},
		{"slow API server", partSource, false, time.Second, 4 * time.Second, ofSource((*source).slowAPI), nil, nil},
		{"black-holed API server", partSource, false, time.Second, 5 * time.Second, ofSource((*source).holeAPI), nil, nil},
	},
	"manifests": {
		{"half a manifest", partSource, false, 500 * time.Millisecond, 2 * time.Second, ofSource((*source).halveManifest), nil, nil},
		{"no manifests", partSource, false, 500 * time.Millisecond, 2 * time.Second, ofSource((*source).hideManifests), nil, nil},
	},
}

// source is one of Sources.
func (c *Config) source() string { return cmp.Or(c.Source, Sources[0]) }

// source is where Weir learns Services, with the faults of it.
type source struct {
	lab      *netlab.Edge
	changing sync.Mutex // guards services and the manifest's file
	services []*service
	api      *apiServer // nil: manifests are the source
}

// make makes the source with every Service, and returns the configuration of it.
func (src *source) make(kind string) (discovery string, err error) {
	if kind == "manifests" {
		if err := os.Mkdir(fileOf(src.lab, "manifests"), 0o755); err != nil {
			return "", err
		}
		return fmt.Sprintf("manifests: {path: %s}", fileOf(src.lab, "manifests")), src.publish(nil)
	}
	g, err := newGate(func(address string) (net.Listener, error) { return src.lab.Edge.Listen("tcp", address) })
	if err != nil {
		return "", err
	}
	src.api = newAPIServer(g)
	src.lab.OnClose(src.api.Close)
	for _, name := range []string{"edge-1", "zonea", "zoneb"} {
		err = errors.Join(err, src.api.put("nodes", fmt.Appendf(nil, "{apiVersion: v1, kind: Node, metadata: {name: %s}}", name)))
	}
	for _, s := range src.services {
		err = errors.Join(err, src.api.put("services", s.render()))
	}
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: src.api.Certificate().Raw})
	kubeconfig, e := json.Marshal(object{"apiVersion": "v1", "kind": "Config", "current-context": "soak",
		"clusters": []object{{"name": "soak", "cluster": object{"server": "https://" + g.Addr().String(), "certificate-authority-data": ca}}},
		"contexts": []object{{"name": "soak", "context": object{"cluster": "soak"}}}})
	return fmt.Sprintf("kubernetes: {kubeconfig: %s}", fileOf(src.lab, "kubeconfig")),
		errors.Join(err, e, os.WriteFile(fileOf(src.lab, "kubeconfig"), kubeconfig, 0o600), src.publish(src.services))
}

// publish has the source tell the endpoints of Services that have changed. src.changing is held, or
// nobody else is there.
func (src *source) publish(changed []*service) error {
	if src.api == nil {
		var b bytes.Buffer
		for _, s := range src.services {
			for _, document := range append([][]byte{s.render()}, s.renderSlices()...) {
				b.WriteString("---\n")
				b.Write(document)
			}
		}
		return src.replaceManifest(b.Bytes())
	}
	var documents [][]byte
	for _, s := range changed {
		documents = append(documents, s.renderSlices()...)
	}
	return src.api.put("endpointslices", documents...)
}

// replaceManifest replaces the manifest at once.
func (src *source) replaceManifest(content []byte) error {
	temp := fileOf(src.lab, "manifests/.services.yaml.new")
	if err := os.WriteFile(temp, content, 0o644); err != nil {
		return err
	}
	return os.Rename(temp, src.manifestFile())
}

func (src *source) manifestFile() string { return fileOf(src.lab, "manifests/services.yaml") }

// follows waits until Weir has every endpoint that the source lists, and no other. Nothing
// changes any more.
func (src *source) follows(ctx context.Context, a *admin) error {
	want := map[string]bool{}
	for _, s := range src.services {
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
		err := a.ask(ctx, "/v1/endpoints", &list)
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
func (src *source) killAPI(_ context.Context, hold func()) error {
	if err := src.api.gate.die(); err != nil {
		return err
	}
	hold()
	return src.api.gate.revive()
}

// slowAPI delays every read and write of the API server.
func (src *source) slowAPI(_ context.Context, hold func()) error {
	src.api.gate.slow(200 * time.Millisecond)
	hold()
	src.api.gate.open()
	return nil
}

// holeAPI swallows what goes to and from the API server, whose connections stay.
func (src *source) holeAPI(_ context.Context, hold func()) error {
	src.api.gate.hole()
	hold()
	src.api.gate.open()
	return nil
}

// halveManifest writes half of the manifest in place, as a copy that is cut short does.
func (src *source) halveManifest(_ context.Context, hold func()) error {
	src.changing.Lock()
	defer src.changing.Unlock()
	whole, err := os.ReadFile(src.manifestFile())
	if err != nil {
		return err
	}
	if err := os.WriteFile(src.manifestFile(), whole[:0], 0o644); err != nil {
		return err
	}
	hold()
	return src.replaceManifest(whole)
}

// hideManifests takes the directory away, as a volume that is not mounted does.
func (src *source) hideManifests(_ context.Context, hold func()) error {
	src.changing.Lock()
	defer src.changing.Unlock()
	if err := os.Rename(fileOf(src.lab, "manifests"), fileOf(src.lab, "hidden")); err != nil {
		return err
	}
	hold()
	return os.Rename(fileOf(src.lab, "hidden"), fileOf(src.lab, "manifests"))
}
