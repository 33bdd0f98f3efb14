package flowlog

import (
	"net/netip"
	"sync"
	"time"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/discovery"
)

// names tells the Services and zones of connections, also for some time after those of Services
// and endpoints that are gone.
type names struct {
	services func() []string
	served   func() []*discovery.Service
	asks     chan chan<- struct{} // to follow; what is sent is closed when names are current

	// asked is when services and served were last asked. They copy what they know of all Services.
	asked time.Time

	mu       sync.RWMutex // of what follows, which only follow changes
	byNumber []string
	zones    map[endpoint]string
}

func newNames(services func() []string, served func() []*discovery.Service) *names {
	return &names{services: services, served: served, asks: make(chan chan<- struct{}, 1)}
}

// endpoint is an address of a Service: the author of another Service may give it another zone.
type endpoint struct {
	service string
	addr    netip.Addr
}

// maxZone is the length of a zone: it is the value of a label of Kubernetes. An EndpointSlice may have longer
// ones, which would fill messages and files.
const maxZone = 63

// Names are asked for again at intervals, and sooner if a Service or endpoint is not known.
const (
	namesEvery  = 10 * time.Second
	namesAtMost = time.Second
	// namesWait bounds the wait for them. A change of many Services holds them for longer, and workers have room
	// for the records of a tenth of a second.
	namesWait = 50 * time.Millisecond
	// mostZones bounds the addresses of endpoints that are remembered.
	mostZones = 1 << 20
)

// refresh has the names asked for if they are older than namesEvery, or than namesAtMost where one of a record
// is missing, and then waits for them for a bounded time.
func (n *names) refresh(now time.Time, records []conntrack.Record) {
	age := now.Sub(n.asked)
	if age < namesAtMost {
		return
	}
	missing := n.missing(records)
	if !missing && age < namesEvery {
		return
	}
	n.asked = now
	current := make(chan struct{})
	select {
	case n.asks <- current:
	default:
		return // the last question has no answer yet
	}
	if missing {
		select {
		case <-current:
		case <-time.After(namesWait):
		}
	}
}

// follow asks for names until asks is closed.
func (n *names) follow() {
	for current := range n.asks {
		n.ask()
		close(current)
	}
}

func (n *names) ask() {
	services := n.services()
	n.mu.Lock()
	for i, name := range services {
		switch {
		case i == len(n.byNumber):
			n.byNumber = append(n.byNumber, name)
		case name != "":
			n.byNumber[i] = name
		}
	}
	n.mu.Unlock()
	served := n.served()
	zones := n.zones
	if zones == nil || len(zones) > mostZones {
		zones = map[endpoint]string{}
	}
	for _, svc := range served {
		n.learn(zones, svc)
	}
	n.mu.Lock()
	n.zones = zones
	n.mu.Unlock()
}

// learn notes the zones of a Service.
func (n *names) learn(zones map[endpoint]string, svc *discovery.Service) {
	n.mu.Lock()
	defer n.mu.Unlock()
	name := svc.Name.String()
	for i := range svc.Ports {
		for j := range svc.Ports[i].Endpoints {
			e := &svc.Ports[i].Endpoints[j]
			zone := e.Zone
			if len(zone) > maxZone {
				zone = ""
			}
			zones[endpoint{name, e.AddrPort.Addr()}] = zone
		}
	}
}

// missing reports whether the Service or the endpoint of a record is not known.
func (n *names) missing(records []conntrack.Record) bool {
	n.mu.RLock()
	defer n.mu.RUnlock()
	for i := range records {
		name := n.service(records[i].ServiceID)
		if _, ok := n.zones[endpoint{name, records[i].Endpoint.Dst().Addr()}]; !ok || name == "" {
			return true
		}
	}
	return false
}

// service is the name of a Service, "" if it is not known. Preconditions: mu is held.
func (n *names) service(number uint32) string {
	if uint64(number) < uint64(len(n.byNumber)) {
		return n.byNumber[number]
	}
	return ""
}

// zone is the zone of an endpoint of a Service, "" if it is not known. Preconditions: mu is held.
func (n *names) zone(service string, addr netip.Addr) string { return n.zones[endpoint{service, addr}] }
