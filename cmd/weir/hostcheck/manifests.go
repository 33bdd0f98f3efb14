package hostcheck

import (
	"io"
	"log/slog"
	"maps"
	"net/netip"
	"slices"

	"github.com/weirlb/weir/cmd/weir/config"
	"github.com/weirlb/weir/cmd/weir/explain"
	"github.com/weirlb/weir/cmd/weir/problem"
	"github.com/weirlb/weir/cmd/weir/source"
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
		Store: source.Examined(cfg),
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
		level := Note
		if rep.Warnings[i].Unserved {
			level = Wrong
		}
		fs.add(level, "manifests", "%v", &rep.Warnings[i])
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
		judgeServices(fs, cfg, src)
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
	if !cfg.Announce.On() || !s.Policy.ExternalLocal {
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

// judgeServices has the problems of the Services as `weir explain -f` has them: those of severity
// error are wrong.
func judgeServices(fs *findings, cfg *config.Configuration, src *manifest.Source) {
	services := src.Services()
	node := discovery.Node{Node: src.Node(), Addresses: src.NodeAddresses()}
	machine := machineAddresses()
	own := func(a netip.Addr) bool { return slices.Contains(node.Addresses, a) || machine[a] }
	node.Addresses = nodePortAddresses(cfg, node.Addresses, slices.Collect(maps.Keys(machine)), defaultSource)
	view, err := explain.Imagine(cfg, services, node, own)
	if err != nil {
		fs.add(Wrong, "manifests", "%v", err)
		return
	}
	var addresses []netip.Addr
	for _, s := range services {
		addresses = append(append(addresses, s.LoadBalancerIPs...), s.ExternalIPs...)
		for _, p := range view.Problems(problem.Service(s.Name.Namespace, s.Name.Name)) {
			level := Note
			if p.Severity == problem.Error {
				level = Wrong
			}
			fs.add(level, "manifests", "%v", &p)
		}
		judgeAggregates(fs, cfg, s)
	}
	checkOnLinks(fs, cfg, addresses)
	checkUnanswered(fs, cfg, addresses, machine)
}
