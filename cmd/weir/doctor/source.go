package doctor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/cmd/weir/drains"
	"github.com/weirlb/weir/cmd/weir/explain"
	"github.com/weirlb/weir/cmd/weir/source"
	"github.com/weirlb/weir/cmd/weir/translate"
	"github.com/weirlb/weir/discovery"
	"github.com/weirlb/weir/discovery/kube"
	"github.com/weirlb/weir/discovery/manifest"
	"github.com/weirlb/weir/lb/header"
)

// clusterTimeout bounds the time in which the API server must have told all Services.
const clusterTimeout = time.Minute

// imagined is the view of a Weir that is not running.
type imagined struct {
	services []*discovery.Service
	node     discovery.Node
	view     explain.View
}

// imagine reads the source of the configuration, and translates it as a start would.
func (p *patient) imagine(ctx context.Context) (*imagined, error) {
	i := &imagined{node: discovery.Node{}}
	i.node.Name = p.cfg.NodeName
	var err error
	switch d := &p.cfg.Discovery; {
	case d.Manifests != nil && d.Manifests.Path != "":
		src := manifest.New(manifest.Config{
			Path: d.Manifests.Path, Log: slog.New(slog.DiscardHandler),
			Store: source.Examined(p.cfg),
		})
		if _, err = src.Load(); err == nil {
			src.Flush()
			i.services, i.node.Node, i.node.Addresses = src.Services(), src.Node(), src.NodeAddresses()
		}
	case d.Kubernetes != nil:
		err = p.imagineCluster(ctx, i)
	default:
		err = errors.New("no source of Services is configured")
	}
	if err != nil {
		return nil, err
	}
	p.drained = drains.Kept(p.cfg)
	seen := translate.Readiness{Drained: p.drained}
	for n, svc := range i.services {
		i.services[n] = seen.Of(svc)
	}
	node := i.node
	node.Addresses = p.nodeAddresses(&i.node)
	i.view, err = explain.Imagine(p.cfg, i.services, node, held)
	return i, err
}

// held reports whether this machine has an address.
func held(a netip.Addr) bool {
	list, err := net.InterfaceAddrs()
	return err == nil && slices.ContainsFunc(list, func(h net.Addr) bool {
		prefix, err := netip.ParsePrefix(h.String())
		return err == nil && prefix.Addr().Unmap() == a
	})
}

// imagineCluster watches the API server until everything has been told.
func (p *patient) imagineCluster(ctx context.Context, i *imagined) error {
	kc, err := source.ClusterConfig(p.cfg)
	if err != nil {
		return err
	}
	kc.Events, kc.Log = false, slog.New(slog.DiscardHandler)
	src, err := kube.New(kc)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, clusterTimeout)
	defer cancel()
	err = src.Run(ctx, func(up *discovery.Update) {
		if up.Node != nil {
			i.node = *up.Node
		}
		if up.Synced {
			i.services = src.Services()
			cancel()
		}
	})
	if err == nil && !src.Synced() {
		err = fmt.Errorf("API server %s has not told all Services in %v", kc.REST.Host, clusterTimeout)
	}
	return err
}

// nodeAddresses are the addresses on which node ports would be served. kube-proxy has node
// ports on all addresses of the node, so the choice matters for the output alone.
func (p *patient) nodeAddresses(node *discovery.Node) (out []netip.Addr) {
	held, err := net.InterfaceAddrs()
	if err != nil {
		return node.Addresses
	}
	prefixes, primary := p.cfg.NodePortPrefixes()
	for _, h := range held {
		prefix, err := netip.ParsePrefix(h.String())
		a := prefix.Addr()
		if err != nil || a.IsLoopback() || a.IsLinkLocalUnicast() {
			continue
		}
		in := func(n netip.Prefix) bool { return n.Contains(a) }
		if primary && slices.Contains(node.Addresses, a) || !primary && (len(prefixes) == 0 || slices.ContainsFunc(prefixes, in)) {
			out = append(out, a)
		}
	}
	return out
}

// frontends are those that Weir would serve.
func (i *imagined) frontends() (list []api.Frontend) {
	for f := range i.view.Table.All() {
		out := api.Frontend{
			Service: f.ServiceName, Address: f.Address(), Protocol: header.ProtocolName(f.Proto),
			Kind: f.Kind.String(), Mode: translate.ModeName(f.Mode), Tier: f.Pool.Tier(), Endpoints: []api.FrontendEndpoint{},
		}
		for _, e := range f.Pool.Endpoints() {
			out.Endpoints = append(out.Endpoints, api.FrontendEndpoint{Address: e.AddrPort.String(), Local: e.Local, Mode: out.Mode})
		}
		list = append(list, out)
	}
	return list
}

// frontendsOf gets the frontends of the running Weir, or those that it would have.
func (p *patient) frontendsOf(ctx context.Context) {
	if p.status == nil {
		i, err := p.imagine(ctx)
		if err != nil {
			p.add(Warning, "weir", "its choice of endpoints is not known: %v", err)
			return
		}
		p.imagined, p.frontends = i, i.frontends()
		return
	}
	list, err := p.client.Frontends(ctx)
	if err != nil {
		p.add(Warning, "weir", "its frontends cannot be read: %v", err)
		return
	}
	p.frontends = list.Frontends
	if p.drained, err = p.drains(ctx); err != nil {
		p.add(Warning, "weir", "the drained endpoints cannot be read: %v", err)
	}
}

// drains are the endpoints that the running Weir drains.
func (p *patient) drains(ctx context.Context) (translate.DrainedSet, error) {
	s, err := p.client.Drains(ctx)
	if err != nil {
		return nil, err
	}
	out := translate.DrainedSet{}
	for _, e := range s.Endpoints {
		if d, ok := translate.ParseDrained(e.Endpoint); ok {
			out[d] = e.Since
		}
	}
	return out, nil
}

// reasons explain by the running Weir, or by the imagined.
func (p *patient) reasons(ctx context.Context) reasons {
	known := map[string]*explain.Service{}
	return func(service string) *explain.Service {
		if s, ok := known[service]; ok {
			return s
		}
		s, err := p.explain(ctx, service)
		if err != nil {
			s = nil // it has just been deleted
		}
		known[service] = s
		return s
	}
}

func (p *patient) explain(ctx context.Context, service string) (found *explain.Service, err error) {
	var out *explain.Output
	if p.status != nil {
		var raw []byte
		if raw, err = p.client.Explain(ctx, api.ExplainQuery{Service: service}); err == nil {
			out, err = explain.Decode(bytes.NewReader(raw))
		}
	} else {
		q := explain.Question{Services: p.imagined.services, Node: p.imagined.node.Node, View: &p.imagined.view}
		if err = q.Parse(api.ExplainQuery{Service: service}); err == nil {
			out, err = q.Answer()
		}
	}
	if err != nil {
		return nil, err
	}
	for s, err := range out.Services {
		if err != nil {
			return nil, err
		}
		found = s
	}
	return found, nil
}
