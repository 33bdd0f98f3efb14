// Package translate turns Services as discovery merges them into the Services
// of the table: the frontends on this node, and the pools of endpoints that
// package topology chooses for them.
//
// It keeps the Services that have a frontend on this node, or would have one if
// the node had an address for it. A change of the node's addresses or labels
// translates only the Services that it affects. The work is in proportion to the
// change.
package translate

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/weirlb/weir/cmd/weir/config"
	"github.com/weirlb/weir/cmd/weir/problem"
	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/discovery"
	"github.com/weirlb/weir/lb/table"
	"github.com/weirlb/weir/topology"
)

// Options say which frontends this node has.
type Options struct {
	// Node is this node's name and labels; an Update with a Node replaces
	// them.
	Node topology.Node
	// NodeAddresses are the node's addresses on which node ports are taken.
	NodeAddresses []netip.Addr
	// Local reports whether an address is the node's own, for
	// ProtectedPorts; nil: exactly the NodeAddresses are.
	Local func(netip.Addr) bool
	// ClusterIPs and ExternalIPs have these kinds of frontends taken too.
	ClusterIPs, ExternalIPs bool
	// ProtectedPorts are never taken on the node's own addresses, whatever a Service says:
	// they keep access to the node for repair.
	ProtectedPorts []uint16
	// Listener is the field of the configuration that has Weir listen on a port of an own address of the
	// node, by UDP or TCP, "" if none does: it is protected, too. nil: none does.
	Listener func(at netip.AddrPort, udp bool) string
	// SNATPorts are the source ports of Weir on the node's own addresses, which no
	// frontend should have.
	SNATPorts config.PortRange
	// DenyLists are the node's deny lists, by number.
	DenyLists []config.DenyList
	// Guard keeps endpoints from leading to the node itself.
	Guard Guard
	// Health is what checks say of endpoints; nil: nothing.
	Health Health
	// WarmsUp reports whether endpoints of a Service that are new in a pool start slowly for a while,
	// whatever the Service says; nil: of none.
	WarmsUp func(discovery.ServiceName) bool
	// LoadBalancerClass limits load balancer IPs to those of Services of
	// this class; "" takes all.
	LoadBalancerClass string
	// Random selects endpoints at random in place of by Maglev, where a
	// Service does not say.
	Random bool
	// Mode is how packets are forwarded where a Service does not say; 0 is
	// conntrack.ModeNAT.
	Mode conntrack.Mode
}

// Complaint has the problems of a Service that is not served, or not as it asks.
type Complaint struct {
	Service  discovery.ServiceName
	Problems []problem.Problem // none: the earlier problems are mended
}

// Batch is a change for [table.Table.Prepare]. Put is sorted by name, so that
// of two new Services that claim the same frontend the first by name gets it. The
// slices in Put are valid until the Translator is used again; the table
// copies what it keeps.
type Batch struct {
	Put    []table.Service
	Delete []string
	// Complaints are those that differ from the ones given before.
	Complaints []Complaint
}

// Empty is true when there is nothing to tell the table.
func (b *Batch) Empty() bool { return len(b.Put) == 0 && len(b.Delete) == 0 }

// Translator is not safe for concurrent use.
type Translator struct {
	opts     Options
	services map[discovery.ServiceName]*entry
	// complaints are the problems given, per Service that has some.
	complaints map[discovery.ServiceName][]problem.Problem
	work       scratch
	askedOwn   bool // own was asked while a Service was translated
	drained    DrainedSet
}

// entry is a Service that the table serves, or would with another node address.
type entry struct {
	svc      *discovery.Service
	served   bool
	byLabels bool // this node's labels have a say in the choice
	byOwn    bool // so does whether an address is the node's own
}

// New makes a Translator that knows no Service.
func New(opts Options) *Translator {
	opts.NodeAddresses = sorted(opts.NodeAddresses)
	return &Translator{
		opts:       opts,
		services:   map[discovery.ServiceName]*entry{},
		complaints: map[discovery.ServiceName][]problem.Problem{},
	}
}

// SetOptions replaces the options. Services that are already translated stay
// as they are: the caller applies all Services again, since some that had no frontend may
// have a frontend now.
func (t *Translator) SetOptions(opts Options) {
	opts.NodeAddresses = sorted(opts.NodeAddresses)
	t.opts = opts
}

// Apply translates an update. Services that the update does not name are
// translated again only where it changes the node's labels and those matter
// to them.
func (t *Translator) Apply(up *discovery.Update) Batch {
	b := t.begin()
	for _, name := range up.Deleted {
		t.complain(b, name, nil)
		t.drop(b, name)
	}
	put := slices.Clone(up.Put)
	relabelled := up.Node != nil && !sameNode(&t.opts.Node, &up.Node.Node)
	if up.Node != nil {
		t.opts.Node = up.Node.Node
	}
	if relabelled {
		named := make(map[discovery.ServiceName]bool, len(up.Put)+len(up.Deleted))
		for _, svc := range up.Put {
			named[svc.Name] = true
		}
		for name, e := range t.services {
			if e.byLabels && !named[name] {
				put = append(put, e.svc)
			}
		}
	}
	t.putAll(b, put)
	return t.end(b)
}

// SetNodeAddresses replaces the addresses on which node ports are taken. It must be called
// after any change of the node's own addresses: protected addresses, and frontends that can
// do without translation, change with them.
func (t *Translator) SetNodeAddresses(addrs []netip.Addr) Batch {
	b := t.begin()
	addrs = sorted(addrs)
	changed := !slices.Equal(addrs, t.opts.NodeAddresses)
	t.opts.NodeAddresses = addrs
	var put []*discovery.Service
	for _, e := range t.services {
		if changed && hasNodePort(e.svc) || e.byOwn {
			put = append(put, e.svc)
		}
	}
	t.putAll(b, put)
	return t.end(b)
}

// sorted is a copy of addrs, each once.
func sorted(addrs []netip.Addr) []netip.Addr {
	addrs = slices.Clone(addrs)
	for i := range addrs {
		addrs[i] = addrs[i].Unmap()
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	return slices.Compact(addrs)
}

// Services are the Services that have a frontend on this node, in no order.
func (t *Translator) Services() []*discovery.Service {
	out := make([]*discovery.Service, 0, len(t.services))
	for _, e := range t.services {
		if e.served {
			out = append(out, e.svc)
		}
	}
	return out
}

// Service is a Service that has frontends here, or would with another node address, as last
// applied; nil for any other.
func (t *Translator) Service(name discovery.ServiceName) *discovery.Service {
	if e := t.services[name]; e != nil {
		return e.svc
	}
	return nil
}

func (t *Translator) begin() *Batch {
	t.work.reset()
	return &Batch{}
}

// end releases the memory of a large batch, such as the first: the caller drops it.
func (t *Translator) end(b *Batch) Batch {
	if t.work.large() {
		t.work = scratch{}
	}
	return *b
}

func (t *Translator) putAll(b *Batch, put []*discovery.Service) {
	slices.SortFunc(put, func(x, y *discovery.Service) int {
		if c := strings.Compare(x.Name.Namespace, y.Name.Namespace); c != 0 {
			return c
		}
		return strings.Compare(x.Name.Name, y.Name.Name)
	})
	for _, svc := range put {
		t.put(b, svc)
	}
}

// put translates a Service, or takes it out of the table.
func (t *Translator) put(b *Batch, svc *discovery.Service) {
	if svc.Headless || svc.ExternalName || svc.Unsupported != "" || svc.Refused != "" {
		t.drop(b, svc.Name)
		t.complain(b, svc.Name, nil)
		return
	}
	t.askedOwn = false
	spec, problems := t.translate(svc)
	if svc.Unused {
		spec.Frontends = nil // those that new options ask for wait for the endpoints
	}
	if len(spec.Frontends) > 0 {
		b.Put = append(b.Put, spec)
		t.services[svc.Name] = &entry{svc, true, byLabels(svc), t.askedOwn}
	} else {
		t.drop(b, svc.Name)
		if hasNodePort(svc) || t.askedOwn {
			t.services[svc.Name] = &entry{svc, false, byLabels(svc), t.askedOwn}
		}
	}
	t.complain(b, svc.Name, problems)
}

// drop forgets a Service and takes it out of the table.
func (t *Translator) drop(b *Batch, name discovery.ServiceName) {
	if e, ok := t.services[name]; ok {
		delete(t.services, name)
		if e.served {
			b.Delete = append(b.Delete, name.String())
		}
	}
}

// complain passes problems on where they differ from those given last time.
func (t *Translator) complain(b *Batch, name discovery.ServiceName, problems []problem.Problem) {
	if slices.Equal(t.complaints[name], problems) {
		return
	}
	if t.complaints[name] = problems; len(problems) == 0 {
		delete(t.complaints, name)
	}
	b.Complaints = append(b.Complaints, Complaint{name, problems})
}

// byLabels reports whether the labels of the node that asks decide anything.
func byLabels(svc *discovery.Service) bool {
	if len(svc.Policy.TopologyKeys) > 0 || svc.Policy.Distribution != topology.DistributionNone {
		return true
	}
	for i := range svc.Ports {
		for j := range svc.Ports[i].Endpoints {
			if len(svc.Ports[i].Endpoints[j].HintZones) > 0 {
				return true
			}
		}
	}
	return false
}

func hasNodePort(svc *discovery.Service) bool {
	return slices.ContainsFunc(svc.Ports, func(p discovery.Port) bool { return p.NodePort != 0 })
}

func sameNode(a, b *topology.Node) bool {
	if a.Name != b.Name || len(a.Labels) != len(b.Labels) {
		return false
	}
	for k, v := range a.Labels {
		if w, ok := b.Labels[k]; !ok || v != w {
			return false
		}
	}
	return true
}
