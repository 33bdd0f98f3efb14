package announcer

import (
	"errors"
	"fmt"
	"slices"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/cmd/weir/config"
	"github.com/weirlb/weir/cmd/weir/poolfile"
	"github.com/weirlb/weir/discovery/addresspool"
	"github.com/weirlb/weir/discovery/kube"
	"github.com/weirlb/weir/lb/announce"
	"github.com/weirlb/weir/lb/announce/bgp"
	"github.com/weirlb/weir/lb/route"
)

// objectInput is all that the objects of a node follow from.
type objectInput struct {
	files  []addresspool.Object
	unread error             // a file could not be read
	listed []kube.PoolObject // of the API server
	labels map[string]string // of the Node; nil: not known
	secret func(namespace, name string) (string, error)
	// addresses are those of the node; nil: not known.
	addresses []route.Address
	// synced is true once the API server has told listed, kept while they are of a file.
	synced, kept bool
	secrets      string // which Secrets there are
}

// readFiles reads announce.objects.
func (in *objectInput) readFiles(c *config.Announce) {
	in.files, in.unread = nil, nil
	if len(c.Objects) > 0 {
		in.files, in.unread = poolfile.Read(c.Objects)
	}
}

// objects are what announce.objects and the API server say about this node. The zero value says
// nothing.
type objects struct {
	addresspool.Announcement
	limits    config.Limits
	neighbors []bgp.Neighbor // of Peers
	faults    []error
	unread    bool // a file could not be read
	// known are the faults of the objects that Routes are of, by faultText.
	known map[string]bool
	// used are the objects of the API server that Routes are of, by objectName.
	used map[string]bool
	// refused is why the objects of before stay, "" if they do not.
	refused string
	// from is where the objects of the API server are from: api.ObjectsWaiting and so on.
	from string
	// unprepended is why paths cannot be prepended to, "" if they can.
	unprepended string
}

// newObjects decodes the objects. One with a fault is out of service alone.
func newObjects(cfg *config.Configuration, in *objectInput) *objects {
	a := &cfg.Announce
	if !a.HasObjects() {
		return &objects{limits: cfg.Limits}
	}
	list := slices.Clone(in.files)
	o := &objects{limits: cfg.Limits, known: map[string]bool{}, used: map[string]bool{}, from: api.ObjectsWaiting}
	switch {
	case in.synced:
		o.from = api.ObjectsListed
	case in.kept:
		o.from = api.ObjectsLastKnown
	}
	for _, x := range in.listed {
		list = append(list, addresspool.Object{JSON: x.JSON})
		o.used[objectName(x.Kind, x.Namespace, x.Name)] = true
	}
	c := addresspool.Decode(list)
	o.Announcement = *c.Announcement(addresspool.Node{
		Name: cfg.NodeName, Links: len(a.L2.Interfaces) > 0, ASN: uint32(a.ASN), Labels: in.labels, Secret: in.secret,
	})
	if in.unread != nil {
		o.faults, o.unread = append(o.faults, in.unread), true
	}
	for _, f := range append(c.Faults, o.Faults...) {
		o.fault(f)
	}
	o.addNeighbors(a, in.addresses)
	return o
}

// counts are the objects that are for the node.
func (o *objects) counts() string {
	return fmt.Sprintf("%d BGPPeers, %d BGPAdvertisements and %d L2Advertisements", len(o.Peers), len(o.Routes), len(o.Links))
}

// fault notes a fault of an object.
func (o *objects) fault(f *addresspool.Fault) {
	o.faults = append(o.faults, f)
	o.known[faultText(f)] = true
	if f.Source == "" && !f.Used {
		delete(o.used, objectName(f.Kind, f.Namespace, f.Name))
	}
}

func objectName(kind, namespace, name string) string { return kind + " " + namespace + "/" + name }

// addNeighbors makes the BGPPeers neighbors.
func (o *objects) addNeighbors(a *config.Announce, node []route.Address) {
	o.Peers = slices.DeleteFunc(o.Peers, func(p addresspool.Peer) bool {
		n, err := neighborOf(&p, node)
		if slices.ContainsFunc(a.Peers, func(x config.Peer) bool { return x.Address == n.Name() || x.Interface == n.Name() }) {
			err = errors.New("spec.peerAddress: announce.peers has the same router")
		}
		if err != nil {
			o.fault(p.Fault(err))
			return true
		}
		o.neighbors = append(o.neighbors, n)
		return false
	})
}

// follow takes over routes and sessions of the objects before a change where a file cannot be read,
// or the change is a mistake: that must not withdraw what is in use.
func (o *objects) follow(last *objects) {
	if last == nil {
		return
	}
	fresh := slices.IndexFunc(o.faults, last.stands)
	if fresh < 0 && !o.unread {
		return
	}
	o.Announcement, o.neighbors, o.known, o.used = last.Announcement, last.neighbors, last.known, last.used
	o.refused = fmt.Sprintf("the routes of before stay until this is mended: %v", o.faults[max(fresh, 0)])
	o.faults = append(o.faults, errors.New(o.refused))
}

// stands reports whether objects in use stand against a fault: they do not have it, and it is one
// of theirs. In a file it is always: a name in it may be new by mistake. In the API server an object
// that was not in use leaves them as they are.
func (o *objects) stands(err error) bool {
	if o.known[faultText(err)] {
		return false
	}
	var f *addresspool.Fault
	return !errors.As(err, &f) || f.Source != "" || o.used[objectName(f.Kind, f.Namespace, f.Name)]
}

// faultText identifies a fault, in whichever file its object is.
func faultText(err error) string {
	var f *addresspool.Fault
	if errors.As(err, &f) {
		elsewhere := *f
		elsewhere.Source = ""
		err = &elsewhere
	}
	return err.Error()
}

// checkPrepend looks whether the paths can be prepended to. A router of the node's own autonomous
// system takes a path with its number for a loop, and drops the route; GoBGP has one path for all
// routers. A path of localASN alone would have the node's other number. A route without the
// prepending reaches them all.
func (o *objects) checkPrepend(c *config.Announce) {
	for i := range o.Peers {
		switch p := &o.Peers[i]; {
		case p.ASN == p.MyASN:
			o.unprepended = fmt.Sprintf("BGPPeer %s has peerASN equal to myASN (iBGP), and takes a path with its own number for a loop", p.Name)
		case p.LocalASN != 0:
			o.unprepended = fmt.Sprintf("BGPPeer %s has localASN, and the path would have myASN as well", p.Name)
		}
	}
	if o.unprepended != "" && c.Prepend > 0 {
		o.faults = append(o.faults, fmt.Errorf("announce.prepend: is not done, since %s; set it to 0, and use localPref", o.unprepended))
	}
}

// Reload takes over settings. It says which objects it does not take over and why, "" if it does.
func (a *Announcer) Reload(cfg *config.Configuration) (refused string) {
	if a == nil {
		return ""
	}
	a.changing.Lock()
	defer a.changing.Unlock()
	a.cfg = *cfg
	a.cordons.Store(cfg.Announce.HonorCordon)
	a.lingering.time.Store(int64(cfg.Announce.AfterWithdrawal()))
	a.input.readFiles(&cfg.Announce)
	return a.take()
}

// take takes over the objects of a.input. It says which it does not take over and why, "" if it does.
// Preconditions: a.changing is held, a.mu is not.
func (a *Announcer) take() (refused string) {
	if a.path != nil {
		a.input.addresses = a.path.Router().Addresses()
	}
	o, c := newObjects(&a.cfg, &a.input), &a.cfg.Announce
	o.follow(a.objects)
	o.checkPrepend(c)
	a.mu.Lock()
	a.objects = o
	a.rule.SetSettings(o.settings(c))
	a.decide(&a.node)
	a.mu.Unlock()
	a.followSessions()
	return o.refused
}

// objectStatus is what status says of the objects. Preconditions: a.mu is held.
func (a *Announcer) objectStatus() *api.AnnounceObjects {
	o := a.objects
	if o == nil || o.known == nil {
		return nil
	}
	out := &api.AnnounceObjects{Peers: len(o.Peers), Advertisements: len(o.Routes), L2Advertisements: len(o.Links), Refused: o.refused}
	for _, f := range o.faults {
		if o.refused == "" || f.Error() != o.refused {
			out.Faults = append(out.Faults, f.Error())
		}
	}
	if a.source != nil {
		out.APIServer = o.from
	}
	return out
}

// settings are those of the configuration with the advertisements of the objects.
func (o *objects) settings(c *config.Announce) announce.Settings {
	s := c.Settings()
	s.MaxPerNamespace, s.MaxPerService = o.limits.Namespace(s.MaxAddresses), o.limits.Service(s.MaxAddresses)
	if o.unprepended != "" {
		s.Attributes.Prepend = 0
	}
	names := map[string][]string{} // of sessions, by BGPPeer
	for i := range o.Peers {
		if c.Speaker == config.AnnounceBGP {
			names[o.Peers[i].Name] = append(names[o.Peers[i].Name], o.neighbors[i].Name())
		}
	}
	for i := range o.Routes {
		r := &o.Routes[i]
		x := announce.Advertisement{
			Allow: r.Prefixes, Aggregate4: r.Aggregate4, Aggregate6: r.Aggregate6, Selects: selects(r.Services),
			Attributes: announce.Attributes{Communities: r.Communities, LargeCommunities: r.LargeCommunities},
			Peers:      peersOf(r, names),
		}
		if r.LocalPref > 0 {
			x.Attributes.LocalPref = &r.LocalPref
		}
		s.Advertisements = append(s.Advertisements, x)
	}
	for i := range o.Links {
		l := &o.Links[i]
		s.Advertisements = append(s.Advertisements, announce.Advertisement{Allow: l.Prefixes, Selects: selects(l.Services), Link: true, Interfaces: l.Interfaces})
	}
	return s
}

// peersOf are the routers of this node that an advertisement is for, by the names of their sessions;
// nil: all.
func peersOf(r *addresspool.Advertised, names map[string][]string) []string {
	if len(r.Peers) == 0 {
		return nil
	}
	out := []string{}
	for _, p := range r.Peers {
		out = append(out, names[p]...)
	}
	return out
}

// selects is the function of label selectors, nil for none.
func selects(list []addresspool.Selector) func(map[string]string) bool {
	if len(list) == 0 {
		return nil
	}
	return func(labels map[string]string) bool { return addresspool.AnyMatches(list, labels) }
}
