package discovery

//lint:file-ignore SA1019 Endpoints are deprecated, and served as long as people write them.

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/weirlb/weir/topology"
)

// Options say how a Store reads the objects it is given.
type Options struct {
	// NodeName is the node on which Weir runs; the labels and addresses are handed out with
	// Update.Node.
	NodeName string
	// ServiceProxyName selects Services by the value of their label
	// service.kubernetes.io/service-proxy-name; "" takes those without it.
	ServiceProxyName string
	// LoadBalancerClass is that of Services which a source makes of other objects.
	LoadBalancerClass string
	// Supported has the features of the data path beyond the plain Service.
	Supported Feature
	// Complete is true where the Store is given every Service that there is:
	// then a slice of a Service that is not there is worth a Note.
	Complete bool
	// MaxMirrored is the most addresses taken of a subset of an Endpoints object; 0 is
	// the 1,000 of the mirroring controller.
	MaxMirrored int
	// Use is what this node makes of a Service without endpoints; nil: all of it. It is asked
	// again by [Store.Reconsider].
	Use func(*Service) Use
	// Names resolves the names of EndpointSlices of addressType FQDN; nil: these are skipped.
	Names Names
	// Limits bound what Services take. Those beyond are handed out with Service.Refused.
	Limits Limits
}

// Store merges Kubernetes objects, in whatever order they come, into
// Services. The result depends on the objects alone and not on their order, except that a
// Service which turns invalid goes on as it last was.
//
// The work for a change is in proportion to the Services concerned: indexes
// lead from a node and from an address to them.
//
// A Store has a single owner: methods must not be called concurrently. The Services that it
// hands out are immutable and may be read by any goroutine. The
// objects given to it are not written, and must not be changed afterwards.
type Store struct {
	opts        Options
	intern      interner
	services    map[ServiceName]*service
	slices      map[objectName]*sliceData
	nodes       nodes
	parser      sliceParser
	skipReasons map[skippedObject]string
	others      map[ServiceName]struct{} // Services of other proxies
	stats       Stats
	demands     demands
	named       nameIndex

	dirty       []*service
	self        *Node // as last handed out
	synced      bool  // told by MarkSynced
	syncChanged bool
	scratch     []candidate
}

// objectName is the namespace and name of any object.
type objectName = ServiceName

// NewStore returns an empty Store.
func NewStore(opts Options) *Store {
	if opts.MaxMirrored <= 0 {
		opts.MaxMirrored = maxMirrored
	}
	s := &Store{
		opts:        opts,
		services:    make(map[ServiceName]*service),
		slices:      make(map[objectName]*sliceData),
		skipReasons: make(map[skippedObject]string),
		others:      make(map[ServiceName]struct{}),
		demands:     demands{limits: opts.Limits, byNamespace: make(map[string]demand)},
	}
	s.nodes = nodes{
		self: opts.NodeName, selfChanged: opts.NodeName != "", queue: s.queue, intern: &s.intern,
		byName: make(map[string]*node), byAddr: make(addrIndex),
	}
	s.parser = sliceParser{&s.intern, &s.nodes, opts.Names != nil}
	return s
}

// Stats returns the counters.
func (s *Store) Stats() Stats { return s.stats }

// serviceNamed is the Service of that name, made when it is new.
func (s *Store) serviceNamed(name ServiceName) *service {
	svc := s.services[name]
	if svc == nil {
		svc = &service{name: name}
		s.services[name] = svc
	}
	return svc
}

// queue marks svc for the next Flush.
func (s *Store) queue(svc *service) {
	if !svc.queued {
		svc.queued = true
		s.dirty = append(s.dirty, svc)
	}
}

// SetService adds or replaces a Service. An invalid Service goes on as it last was, with
// Errors; at first it is served as far as it is valid, or left to the kernel where that
// would serve it more openly than it is meant.
func (s *Store) SetService(obj *corev1.Service) {
	name := ServiceName{obj.Namespace, obj.Name}
	if obj.Labels[labelServiceProxyName] != s.opts.ServiceProxyName {
		s.DeleteService(obj.Namespace, obj.Name)
		s.others[name] = struct{}{}
		return
	}
	delete(s.others, name)
	svc := s.serviceNamed(name)
	sp := parseService(obj, svc.good.of(obj), &s.opts)
	switch {
	case sp.valid:
		svc.good = goodSpec{sp, obj}
	case svc.good.of(obj) == nil:
		svc.good = goodSpec{}
	}
	if svc.spec.equal(sp) {
		return
	}
	s.frontendsOf(sp, 1)
	s.frontendsOf(svc.spec, -1)
	svc.spec = sp
	s.changed(svc)
}

// Recall tells of a valid version that a Service had before the first SetService. It counts if the
// Service is still the same, by UID, and invalid.
func (s *Store) Recall(obj *corev1.Service) {
	if obj.Labels[labelServiceProxyName] != s.opts.ServiceProxyName {
		return
	}
	svc := s.serviceNamed(ServiceName{obj.Namespace, obj.Name})
	if sp := parseService(obj, nil, &s.opts); sp.valid && svc.spec == nil {
		svc.good = goodSpec{sp, obj}
	}
}

// Valid returns the last valid versions of the Services that are invalid now, in no order.
func (s *Store) Valid() (out []*corev1.Service) {
	for _, svc := range s.services {
		if svc.spec != nil && !svc.spec.valid && svc.good.spec != nil {
			out = append(out, svc.good.obj)
		}
	}
	return out
}

// DeleteService removes a Service. The slices are kept for its return.
func (s *Store) DeleteService(namespace, name string) {
	delete(s.others, ServiceName{namespace, name})
	svc := s.services[ServiceName{namespace, name}]
	if svc == nil || svc.spec == nil {
		return
	}
	s.frontendsOf(svc.spec, -1)
	svc.spec, svc.good = nil, goodSpec{}
	s.changed(svc)
}

// SetSlice adds or replaces an EndpointSlice. A slice that now names another Service leaves
// the first.
func (s *Store) SetSlice(obj *discoveryv1.EndpointSlice) {
	id := objectName{obj.Namespace, obj.Name}
	owner := obj.Labels[discoveryv1.LabelServiceName]
	if owner == "" {
		s.removeSlice(id)
		s.setSkipReason("EndpointSlice", id, "no label "+discoveryv1.LabelServiceName+": it belongs to no Service")
		return
	}
	s.setSkipReason("EndpointSlice", id, "")
	if s.ignored(obj.Labels) {
		s.removeSlice(id)
		return
	}
	svc := s.serviceNamed(ServiceName{obj.Namespace, owner})
	d := s.parser.slice(obj)
	d.svc = svc
	old := s.slices[id]
	if old != nil && old.svc == svc && old.equal(d) {
		s.nodes.forgetUnused(d)
		return
	}
	// The new slice is counted before the old slice is released, so that a node that both
	// name is not forgotten in between.
	s.nodes.addUse(svc, d, 1)
	s.followNames(d)
	s.detach(id)
	s.slices[id] = d
	if svc.slices == nil {
		svc.slices = make(map[string]*sliceData)
	}
	svc.slices[d.name] = d
	s.count(d, 1)
	if old != nil && old.svc != svc {
		s.changed(old.svc)
	}
	s.changed(svc)
}

// ignored reports whether a slice is, by its labels, for another proxy or
// for none: kube-proxy does not even watch such slices.
func (s *Store) ignored(labels map[string]string) bool {
	_, headless := labels[labelHeadless]
	proxy, named := labels[labelServiceProxyName]
	return headless || named && proxy != s.opts.ServiceProxyName
}

// DeleteSlice removes an EndpointSlice.
func (s *Store) DeleteSlice(namespace, name string) {
	id := objectName{namespace, name}
	s.setSkipReason("EndpointSlice", id, "")
	s.removeSlice(id)
}

func (s *Store) removeSlice(id objectName) {
	if d := s.detach(id); d != nil {
		s.changed(d.svc)
	}
}

// detach takes a slice out of the indexes and returns it, nil if there was
// none.
func (s *Store) detach(id objectName) *sliceData {
	d := s.slices[id]
	if d == nil {
		return nil
	}
	delete(s.slices, id)
	delete(d.svc.slices, d.name)
	s.count(d, -1)
	s.nodes.addUse(d.svc, d, -1)
	s.forgetNames(d)
	return d
}

// changed follows a change of svc's objects.
func (s *Store) changed(svc *service) {
	s.mirror(svc)
	s.queue(svc)
}

// count keeps the counters of slices.
func (s *Store) count(d *sliceData, by int) {
	s.stats.Slices += by
	s.stats.RefusedEndpoints += by * d.refused
	if d.fqdn {
		s.stats.FQDNSlices += by
	}
}

// SetEndpoints adds or replaces a legacy Endpoints object. It is served only
// where the mirroring controller would mirror it.
func (s *Store) SetEndpoints(obj *corev1.Endpoints) {
	svc := s.serviceNamed(ServiceName{obj.Namespace, obj.Name})
	s.unmirror(svc)
	svc.endpoints = obj
	s.changed(svc)
}

// DeleteEndpoints removes a legacy Endpoints object.
func (s *Store) DeleteEndpoints(namespace, name string) {
	svc := s.services[ServiceName{namespace, name}]
	if svc == nil || svc.endpoints == nil {
		return
	}
	s.unmirror(svc)
	svc.endpoints = nil
	s.queue(svc)
}

// SetNode adds or replaces a Node.
func (s *Store) SetNode(n *corev1.Node) { s.nodes.set(n) }

// DeleteNode removes a Node. Endpoints that name it stay where they are.
func (s *Store) DeleteNode(name string) { s.nodes.remove(name) }

// MarkSynced says that the source has told all that it knew at start: the
// next Flush, and all after it, say so too.
func (s *Store) MarkSynced() {
	s.syncChanged = s.syncChanged || !s.synced
	s.synced = true
}

// Flush returns the changes since the last Flush, nil for none. A
// Service that was changed and changed back is not in it.
func (s *Store) Flush() *Update {
	up := &Update{Synced: s.synced}
	s.nodes.follow(s.services)
	for _, svc := range s.dirty {
		s.weigh(svc)
	}
	s.admit()
	slices.SortFunc(s.dirty, func(a, b *service) int { return a.name.compare(b.name) })
	for _, svc := range s.dirty {
		svc.queued = false
		s.flush(svc, up)
	}
	clear(s.dirty)
	s.dirty = s.dirty[:0]
	if s.nodes.selfChanged {
		s.nodes.selfChanged = false
		self := &Node{Node: topology.Node{Name: s.opts.NodeName}}
		if nd := s.nodes.byName[self.Name]; nd != nil {
			self.Labels, self.Addresses = nd.labels, nd.host
		}
		if s.self == nil || !maps.Equal(s.self.Labels, self.Labels) || !slices.Equal(s.self.Addresses, self.Addresses) {
			s.self, up.Node = self, self
		}
	}
	if !s.syncChanged && up.Node == nil && len(up.Put) == 0 && len(up.Deleted) == 0 {
		return nil
	}
	s.syncChanged = false
	return up
}

// flush puts a Service into up if it differs from before.
func (s *Store) flush(svc *service, up *Update) {
	if svc.spec == nil {
		s.makeNamed(svc, false)
		if svc.out != nil {
			svc.out = nil
			s.stats.Services--
			up.Deleted = append(up.Deleted, svc.name)
		}
		if len(svc.slices) == 0 && svc.endpoints == nil {
			delete(s.services, svc.name)
		}
		return
	}
	out := s.merge(svc)
	if svc.out == nil {
		s.stats.Services++
	} else if svc.out.equal(out) {
		return
	}
	svc.out = out
	up.Put = append(up.Put, out)
}

// Service returns a Service as last handed out, nil when there is none.
func (s *Store) Service(name ServiceName) *Service {
	if svc := s.services[name]; svc != nil {
		return svc.out
	}
	return nil
}

// All returns all Services as last handed out, sorted by name.
func (s *Store) All() []*Service {
	all := make([]*Service, 0, s.stats.Services)
	for _, svc := range s.services {
		if svc.out != nil {
			all = append(all, svc.out)
		}
	}
	slices.SortFunc(all, func(a, b *Service) int { return a.Name.compare(b.Name) })
	return all
}
