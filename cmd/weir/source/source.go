// Package source has the sources of Services as the configuration names them: manifest files, or an
// API server with the last known state beside it.
package source

import (
	"context"
	"errors"
	"log/slog"

	"github.com/weirlb/weir/cmd/weir/config"
	"github.com/weirlb/weir/cmd/weir/problem"
	"github.com/weirlb/weir/cmd/weir/translate"
	"github.com/weirlb/weir/discovery"
	"github.com/weirlb/weir/discovery/manifest"
	"github.com/weirlb/weir/lb"
)

// Source is where Services come from.
type Source interface {
	// Run delivers changes, coalesced, until ctx ends. The first update that is Synced
	// holds all objects.
	Run(ctx context.Context, deliver func(*discovery.Update)) error
	// Reload looks for changes now.
	Reload()
	// Services are all Services as last delivered.
	Services() []*discovery.Service
	// Merged is a Service with all endpoints, also where no frontend here needs them; nil: there
	// is none.
	Merged(name discovery.ServiceName) *discovery.Service
	// Reconsider has the next update follow another reach of this node.
	Reconsider()
	// Stats counts all objects and the skipped objects.
	Stats() discovery.Stats
	// Problems are the present problems of the source, apart from the Services.
	Problems() []problem.Problem
	// String describes the source.
	String() string
}

// ReachOf is the reach of a node whose addresses are not known.
func ReachOf(cfg *config.Configuration) *translate.SharedReach {
	r := &translate.SharedReach{}
	r.Set(translate.Reach{ClusterIPs: cfg.ClusterIPs, ExternalIPs: cfg.ExternalIPs, LoadBalancerClass: cfg.LoadBalancerClass})
	return r
}

// New makes the source that the configuration names. It calls working for each update.
func New(ctx context.Context, cfg *config.Configuration, reach *translate.SharedReach, working func() (done func()), log *slog.Logger) (Source, error) {
	if m := cfg.Discovery.Manifests; m != nil {
		n := newNames(cfg, log)
		src := manifests{manifest.New(manifest.Config{
			Path:    m.Path,
			Store:   n.resolving(needed(cfg, reach)),
			Working: working,
			Log:     log,
		}), m.Path, n}
		n.changed = src.NamesChanged
		return src, nil
	}
	if cfg.Discovery.Kubernetes != nil {
		return newCluster(ctx, cfg, reach, working, log)
	}
	return nil, errors.New("discovery: no source is configured")
}

// Store returns the options of every store of Weir: `weir run`, `weir check` and `weir explain` must
// judge Services alike.
func Store(cfg *config.Configuration) discovery.Options {
	limit := func(store int) discovery.Limit {
		return discovery.Limit{Total: store, Namespace: cfg.Limits.Namespace(store), Service: cfg.Limits.Service(store)}
	}
	var known discovery.Names
	if resolves(cfg) {
		known = discovery.NoNames{}
	}
	return discovery.Options{
		NodeName: cfg.NodeName, ServiceProxyName: cfg.ServiceProxyName, Supported: translate.Supported,
		LoadBalancerClass: cfg.LoadBalancerClass, Names: known,
		Limits: discovery.Limits{Frontends: limit(lb.MaxFrontends), Endpoints: limit(lb.MaxEndpoints), Names: limit(discovery.MaxNamed)},
	}
}

// Examined is Store for an examination without a daemon: the limits count as they would for a
// node with this configuration, and all endpoints are shown.
func Examined(cfg *config.Configuration) discovery.Options {
	o := Store(cfg)
	if cfg.Discovery.Kubernetes == nil { // files
		o.Names = discovery.NoNames{}
	}
	reach := translate.Reach{ClusterIPs: cfg.ClusterIPs, ExternalIPs: cfg.ExternalIPs, LoadBalancerClass: cfg.LoadBalancerClass}
	o.Use = func(svc *discovery.Service) discovery.Use {
		return discovery.Use{Endpoints: true, Frontends: reach.Use(svc).Frontends}
	}
	return o
}

// needed are the options of a store that merges the Services that this node needs.
func needed(cfg *config.Configuration, reach *translate.SharedReach) discovery.Options {
	o := Store(cfg)
	o.Use = reach.Use
	return o
}

// maxNotes is how many objects that are passed over are listed.
const maxNotes = 1000

func noteProblems(notes []discovery.Note) []problem.Problem {
	var out []problem.Problem
	for _, n := range notes[:min(len(notes), maxNotes)] {
		out = append(out, problem.Problem{Kind: problem.OrphanSlice, Object: n.Kind + " " + n.Namespace + "/" + n.Name, Reason: n.Text})
	}
	return out
}

// manifests is the source of files.
type manifests struct {
	*manifest.Source
	path  string
	names *resolution
}

// Run implements Source.
func (m manifests) Run(ctx context.Context, deliver func(*discovery.Update)) error {
	defer m.names.run(ctx)()
	return m.Source.Run(ctx, deliver)
}

// Problems implements Source. The log of the manifests is their own.
func (m manifests) Problems() []problem.Problem {
	r := m.Report()
	out := make([]problem.Problem, 0, len(r.Errors)+len(r.Warnings)+len(r.Notes))
	add := func(kind problem.Kind, list []manifest.Error) {
		for i := range list {
			e := &list[i]
			p := problem.Problem{Kind: kind, Object: "File " + e.File, Field: e.Field, Reason: e.Error(), Logged: true}
			if e.Object.Name != "" {
				p.Object = e.Object.String()
			}
			out = append(out, p)
		}
	}
	add(problem.Manifest, r.Errors)
	add(problem.ManifestWarning, r.Warnings)
	out = append(out, noteProblems(m.Notes())...)
	out = append(out, m.names.problems()...)
	for _, n := range r.Notes {
		out = append(out, problem.Problem{Kind: problem.ManifestNote, Object: "File " + n.File, Reason: n.String(), Logged: true})
	}
	return out
}

func (m manifests) String() string { return "manifests " + m.path }
