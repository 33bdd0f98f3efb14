package explain

import (
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/weirlb/weir/cmd/weir/config"
	"github.com/weirlb/weir/cmd/weir/problem"
	"github.com/weirlb/weir/cmd/weir/translate"
	"github.com/weirlb/weir/discovery"
	"github.com/weirlb/weir/lb"
	lbtable "github.com/weirlb/weir/lb/table"
)

// Frontend is an address, protocol and port by which a Service is to be reached
// from outside. Cluster IPs are listed where Weir serves them.
type Frontend struct {
	Address  string `json:"address"` // address:port
	Protocol string `json:"protocol"`
	Kind     string `json:"kind"`           // NodePort, LoadBalancer, ExternalIP, ClusterIP
	Port     string `json:"port,omitempty"` // name of the Service port
	// Served is true where this node serves the Service there, in Mode.
	Served bool   `json:"served"`
	Mode   string `json:"mode,omitempty"`
	// Holder is the other Service that has the frontend, or a part of its ports.
	Holder string `json:"holder,omitempty"`
	Reason string `json:"reason,omitempty"` // why it, or a part of its ports, is not served
}

// View is the state of a node's frontends.
type View struct {
	// Claims are the claims of a Service under the node's configuration.
	Claims func(*discovery.Service) []translate.Claim
	// Table is the published snapshot.
	Table *lbtable.Snapshot
	// NoRoom are frontends that the steering program has no room for.
	NoRoom map[lbtable.Key]bool
	// Waiting is why nothing is served yet, "" if that is not so.
	Waiting string
	// NoNodePorts is why node ports are served on no address, "" where they
	// are, and where the node's addresses are not known.
	NoNodePorts string
	// Guard keeps endpoints from leading to the node itself.
	Guard translate.Guard
	// Problems are those of an object.
	Problems func(object string) []problem.Problem
}

func (v *View) frontends(svc *discovery.Service) []Frontend {
	var out []Frontend
	for _, c := range v.Claims(svc) {
		f := Frontend{Address: lbtable.AddressText(c.AddrPort, c.LastPort), Protocol: c.Protocol, Kind: c.Kind.String(), Port: c.PortName, Reason: c.Refused}
		key := lbtable.MakeRangeKey(c.AddrPort, c.LastPort, c.Proto)
		entry := v.Table.Lookup(&key)
		if entry != nil && entry.ServiceName != svc.Name.String() {
			f.Holder = entry.ServiceName
		}
		switch {
		case f.Reason != "":
		case v.Waiting != "":
			f.Reason = v.Waiting
		case f.Holder != "":
			f.Reason = "held by Service " + f.Holder
		case v.NoRoom[key]:
			f.Reason = "no room in the steering program's map: its packets go to the kernel"
		case entry == nil:
			f.Reason = "not published: see the problems of the Service"
		default:
			f.Served, f.Mode = true, translate.ModeName(entry.Mode)
			if o := v.Table.Overlapping(entry); o != nil {
				f.Holder, f.Reason = o.ServiceName, fmt.Sprintf("ports in common with %s are not served: Service %s has them", o.Address(), o.ServiceName)
			}
		}
		out = append(out, f)
	}
	if svc.Headless || svc.ExternalName {
		return out
	}
	for _, u := range svc.Unserved {
		for _, p := range svc.Ports {
			out = append(out, Frontend{Address: net.JoinHostPort(u.Address, strconv.Itoa(int(p.Port))), Protocol: p.Protocol, Kind: lbtable.LoadBalancer.String(), Port: p.Name, Reason: u.Reason})
		}
	}
	if v.NoNodePorts == "" {
		return out
	}
	for _, p := range svc.Ports {
		if p.NodePort != 0 {
			out = append(out, Frontend{Address: fmt.Sprintf(":%d", p.NodePort), Protocol: p.Protocol, Kind: lbtable.NodePort.String(), Port: p.Name, Reason: v.NoNodePorts})
		}
	}
	return out
}

// Imagine is the view of a node with this configuration on which no Weir is running: the Services
// are translated and published as a daemon would, without a packet path. own reports whether the
// node has an address.
func Imagine(cfg *config.Configuration, services []*discovery.Service, node discovery.Node, own func(netip.Addr) bool) (View, error) {
	opts := translate.Options{
		Node: node.Node, NodeAddresses: node.Addresses,
		ClusterIPs: cfg.ClusterIPs, ExternalIPs: cfg.ExternalIPs, LoadBalancerClass: cfg.LoadBalancerClass,
		ProtectedPorts: cfg.ProtectedPorts, Listener: cfg.ListenerAt, SNATPorts: cfg.SNAT.Range(), DenyLists: cfg.DenyLists,
		Guard: translate.GuardOf(cfg, own), Mode: translate.Mode(cfg.Forwarding.Mode),
	}
	t := translate.New(opts)
	b := t.Apply(&discovery.Update{Put: services})
	frontends := lbtable.New(lbtable.Config{})
	if _, err := frontends.Apply(b.Put, nil); err != nil {
		return View{}, fmt.Errorf("frontends: %w", err)
	}
	found := map[string][]problem.Problem{}
	add := func(object string, list ...problem.Problem) { found[object] = append(found[object], list...) }
	for _, svc := range services {
		add(problem.Service(svc.Name.Namespace, svc.Name.Name), translate.Discovered(svc)...)
	}
	for _, c := range b.Complaints {
		add(problem.Service(c.Service.Namespace, c.Service.Name), c.Problems...)
	}
	for _, c := range frontends.Conflicts() {
		for _, p := range translate.Conflict(&c) {
			add(p.Object, p)
		}
	}
	for _, p := range unroomed(frontends.Load()) {
		add(p.Object, p)
	}
	registry := problem.NewRegistry(slog.New(slog.DiscardHandler))
	for object, list := range found {
		registry.Set("explain", object, list...)
	}
	return View{Guard: opts.Guard, Claims: t.Claims, Table: frontends.Load(), Problems: registry.Of}, nil
}

// unroomed are the ranges of ports of addresses that have more of them than a node takes: which of them are left out,
// the order of their arrival decides.
func unroomed(s *lbtable.Snapshot) (out []problem.Problem) {
	type at struct {
		netip.Addr
		proto uint8
	}
	ranges := map[at][]*lbtable.FrontendEntry{}
	for f := range s.All() {
		if f.LastPort != 0 {
			k := at{f.AddrPort.Addr(), f.Proto}
			ranges[k] = append(ranges[k], f)
		}
	}
	for _, list := range ranges {
		if len(list) <= lb.MaxRanges {
			continue
		}
		for _, f := range list {
			out = append(out, problem.Problem{
				Kind: problem.NoSteeringRoom, Object: "Service " + f.ServiceName,
				Reason: fmt.Sprintf("%s %s: one of %d ranges of ports of the address and protocol, of which a node takes %d: packets to the others go to the kernel", f.Kind, f.Address(), len(list), lb.MaxRanges),
			})
		}
	}
	return out
}

// renderFrontends writes frontends and problems. Problems that Errors and Warnings have
// already are left out.
func (s *Service) renderFrontends(b *strings.Builder) {
	for _, p := range s.Problems {
		switch p.Kind {
		case problem.UnsupportedField:
			if s.Unsupported != "" {
				continue
			}
		case problem.InvalidObject, problem.ServiceWarning, problem.Manifest, problem.ManifestWarning:
			continue
		}
		text := p.Reason
		if p.Field != "" {
			text = p.Field + ": " + text
		}
		fmt.Fprintf(b, "  %s: %s  %s\n", p.Severity, p.Kind, text)
	}
	if len(s.Frontends) == 0 {
		return
	}
	var lines strings.Builder
	w := tabwriter.NewWriter(&lines, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "FRONTEND\tKIND\tSTATE\tREASON")
	list := slices.Clone(s.Frontends)
	slices.SortStableFunc(list, func(a, b Frontend) int { return strings.Compare(a.Kind, b.Kind) })
	for _, f := range list {
		state, reason := "not served", f.Reason
		if f.Served {
			state, reason = "served", f.Mode
			if f.Reason != "" {
				state, reason = "partly served", f.Mode+"; "+f.Reason
			}
		}
		fmt.Fprintf(w, "%s %s\t%s\t%s\t%s\n", f.Protocol, f.Address, f.Kind, state, reason)
	}
	w.Flush() // into memory
	for line := range strings.Lines(lines.String()) {
		b.WriteString("  " + line)
	}
}
