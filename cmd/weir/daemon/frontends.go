package daemon

import (
	"fmt"
	"hash/fnv"

	"github.com/weirlb/weir/discovery"
)

// portKey is a frontend's port as the Service has it.
type portKey struct {
	service  string // namespace/name
	nodePort bool
	port     uint16
	protocol string
}

// portNames are the names of the Service ports that have one.
func portNames(services []*discovery.Service) map[portKey]string {
	out := map[portKey]string{}
	for _, svc := range services {
		for _, p := range svc.Ports {
			if p.Name != "" {
				out[portKey{svc.Name.String(), false, p.Port, p.Protocol}] = p.Name
				out[portKey{svc.Name.String(), true, p.NodePort, p.Protocol}] = p.Name
			}
		}
	}
	return out
}

// frontendsHash is a hash of all frontends, without node ports, with their
// Services: nodes that serve the same have the same.
func (d *Daemon) frontendsHash() uint32 {
	var sum uint32
	for f := range d.lb.Tables().Load().All() {
		if f.Kind.String() == "NodePort" {
			continue // on the node's own addresses
		}
		h := fnv.New32a()
		fmt.Fprintf(h, "%s %s %d", f.ServiceName, f.AddrPort, f.Proto)
		sum += h.Sum32()
	}
	return sum
}
