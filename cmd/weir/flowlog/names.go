package flowlog

import (
	"net/netip"
	"time"

	"github.com/weirlb/weir/discovery"
)

// names tells the Services and zones of connections, also for some time after those of Services
// and endpoints that are gone.
type names struct {
	services func() []string
	served   func() []*discovery.Service

	byNumber []string
	zones    map[endpoint]string
	// asked is when services and served were last asked. They copy what they know of all Services.
	asked time.Time
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
	// mostZones bounds the addresses of endpoints that are remembered.
	mostZones = 1 << 20
)

// refresh asks for the names if they are older than namesEvery, or than namesAtMost where one is
// missing.
func (n *names) refresh(now time.Time, missing bool) {
	if age := now.Sub(n.asked); age < namesAtMost || !missing && age < namesEvery {
		return
	}
	n.asked = now
	for i, name := range n.services() {
		switch {
		case i == len(n.byNumber):
			n.byNumber = append(n.byNumber, name)
		case name != "":
			n.byNumber[i] = name
		}
	}
	if n.zones == nil || len(n.zones) > mostZones {
		n.zones = map[endpoint]string{}
	}
	for _, svc := range n.served() {
		name := svc.Name.String()
		for i := range svc.Ports {
			for j := range svc.Ports[i].Endpoints {
				e := &svc.Ports[i].Endpoints[j]
				zone := e.Zone
				if len(zone) > maxZone {
					zone = ""
				}
				n.zones[endpoint{name, e.AddrPort.Addr()}] = zone
			}
		}
	}
}

// knows reports whether Service and endpoint of a record are known.
func (n *names) knows(service uint32, addr netip.Addr) bool {
	name := n.service(service)
	_, ok := n.zones[endpoint{name, addr}]
	return ok && name != ""
}

// service is the name of a Service, "" if it is not known.
func (n *names) service(number uint32) string {
	if uint64(number) < uint64(len(n.byNumber)) {
		return n.byNumber[number]
	}
	return ""
}

// zone is the zone of an endpoint of a Service, "" if it is not known.
func (n *names) zone(service string, addr netip.Addr) string { return n.zones[endpoint{service, addr}] }
