package hostcheck

import (
	"io"
	"log/slog"
	"slices"

	"github.com/weirlb/weir/cmd/weir/config"
	"github.com/weirlb/weir/cmd/weir/problem"
	"github.com/weirlb/weir/cmd/weir/translate"
	"github.com/weirlb/weir/discovery"
	"github.com/weirlb/weir/discovery/manifest"
)

// checkManifests reads the manifests as the start would. A mistake in them
// does not keep Weir from starting, but the object concerned is not served.
func checkManifests(fs *findings, cfg *config.Configuration) {
	m := cfg.Discovery.Manifests
	if m == nil || m.Path == "" {
		return
	}
	src := manifest.New(manifest.Config{
		Path:  m.Path,
		Store: translate.Discovery(cfg.NodeName, cfg.ServiceProxyName),
		Log:   slog.New(slog.NewTextHandler(io.Discard, nil)),
	})
	rep, err := src.Load()
	if err != nil {
		return // the path: told by Configuration.CheckHost
	}
	for i := range rep.Errors {
		fs.add(Wrong, "manifests", "%v", &rep.Errors[i])
	}
	for i := range rep.Warnings {
		fs.add(Note, "manifests", "%v", &rep.Warnings[i])
	}
	for _, n := range rep.Notes {
		fs.add(Note, "manifests", "%v", n)
	}
	for _, n := range src.Notes() {
		fs.add(Note, "manifests", "%v", n)
	}
	services, node := 0, false
	if up := src.Flush(); up != nil {
		services, node = len(up.Put), up.Node != nil && len(up.Node.Labels) > 0
		for _, s := range up.Put {
			judgeService(fs, s)
			judgeAggregates(fs, cfg, s)
		}
	}
	if !node {
		fs.add(Note, "manifests", "there is no Node %s with labels: without them no endpoint is known to be in the same zone", cfg.NodeName)
	}
	if len(rep.Errors) == 0 {
		fs.add(OK, "manifests", "%s: %d objects, %d of them Services", m.Path, rep.Objects, services)
	}
}

// judgeAggregates notes an address that nodes without an endpoint attract packets for.
func judgeAggregates(fs *findings, cfg *config.Configuration, s *discovery.Service) {
	if cfg.Announce.Speaker == config.AnnounceOff || !s.Policy.ExternalLocal {
		return
	}
	settings := cfg.Announce.Settings()
	for _, a := range slices.Concat(s.LoadBalancerIPs, s.ExternalIPs) {
		for _, p := range settings.Aggregates(a) {
			fs.add(Note, "announce", "Service %v has externalTrafficPolicy: Local: a node without an endpoint of it loses the packets to %s "+
				"while it announces %s for others; announce this address without aggregation", s.Name, a, p)
		}
	}
}

// judgeService takes over discovery's findings about a Service.
func judgeService(fs *findings, s *discovery.Service) {
	for _, p := range translate.Discovered(s) {
		p.Object = "Service " + s.Name.String()
		switch p.Kind {
		case problem.InvalidObject:
			fs.add(Wrong, "manifests", "%v", &p)
		case problem.UnsupportedField:
			fs.add(Note, "manifests", "Service %v stays with the kernel: %s", s.Name, s.Unsupported)
		default:
			fs.add(Note, "manifests", "%v", &p)
		}
	}
}
