package discovery

import (
	"fmt"
	"maps"
	"net/netip"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/weirlb/weir/topology"
)

// maxWeight bounds weights so that the lightest endpoint of a pool still has a
// part that can be told from nothing.
const maxWeight = 1000

var weightRange = fmt.Sprintf("must be a number between 1 and %d, inclusive", maxWeight)

// weights are the endpoints' weights in a Service's annotation: by address and port, by
// address, or by node. The most specific counts.
type weights struct {
	ports map[netip.AddrPort]uint32
	addrs map[netip.Addr]uint32
	nodes map[string]uint32
}

// readWeights takes "NAME=WEIGHT,...".
func (w *annotationOptions) readWeights(text string) string {
	out := weights{map[netip.AddrPort]uint32{}, map[netip.Addr]uint32{}, map[string]uint32{}}
	for _, item := range splitList(text) {
		name, value, _ := strings.Cut(item, "=")
		n, ok := parseWeight(value)
		if name = strings.TrimSpace(name); name == "" || !ok {
			return invalidValue(item, fmt.Sprintf("must be ADDRESS=WEIGHT, ADDRESS:PORT=WEIGHT or NODE=WEIGHT with a weight between 1 and %d", maxWeight))
		}
		if ap, err := netip.ParseAddrPort(name); err == nil {
			out.ports[netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())] = n
		} else if a, ok := ParseAddr(name); ok {
			out.addrs[a] = n
		} else {
			out.nodes[strings.Clone(name)] = n
		}
	}
	w.weights = out
	return ""
}

func parseWeight(text string) (uint32, bool) {
	n, err := strconv.ParseUint(strings.TrimSpace(text), 10, 32)
	return uint32(n), err == nil && n >= 1 && n <= maxWeight
}

func (w *weights) equal(o *weights) bool {
	return maps.Equal(w.ports, o.ports) && maps.Equal(w.addrs, o.addrs) && maps.Equal(w.nodes, o.nodes)
}

// apply gives the endpoints named by the annotation their weights; the others
// keep that of their slice, or else of their node.
func (w *weights) apply(eps []topology.Endpoint) {
	if len(w.ports)+len(w.addrs)+len(w.nodes) == 0 {
		return
	}
	for i := range eps {
		e := &eps[i]
		if n, ok := w.ports[e.AddrPort]; ok {
			e.Weight = n
		} else if n, ok := w.addrs[e.AddrPort.Addr()]; ok {
			e.Weight = n
		} else if n, ok := w.nodes[e.NodeName]; ok && e.NodeName != "" {
			e.Weight = n
		}
	}
}

// nodeWeight is the weight that a Node gives to the endpoints on it, 0 for none, and the
// error of the value. The annotation has
// precedence over the label.
func nodeWeight(n *corev1.Node) (weight uint32, fault string) {
	text, ok := n.Annotations[AnnotationWeight]
	path := annotationPath(AnnotationWeight)
	if !ok {
		text, path = n.Labels[AnnotationWeight], "metadata.labels["+AnnotationWeight+"]"
	}
	if text == "" {
		for _, warning := range unknownAnnotations(n.Annotations, []string{AnnotationWeight}) {
			return 0, warning
		}
		return 0, ""
	}
	weight, ok = parseWeight(text)
	if !ok {
		return 0, path + ": " + invalidValue(text, weightRange)
	}
	return weight, ""
}
