package hostcheck

import (
	"io"
	"log/slog"

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
		}
	}
	if !node {
		fs.add(Note, "manifests", "there is no Node %s with labels: without them no endpoint is known to be in the same zone", cfg.NodeName)
	}
	if len(rep.Errors) == 0 {
		fs.add(OK, "manifests", "%s: %d objects, %d of them Services", m.Path, rep.Objects, services)
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
