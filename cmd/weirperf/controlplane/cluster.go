package controlplane

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/weirlb/weir/topology"
)

const (
	namespace = "production"
	perSlice  = 100 // endpoints, the slice controller's default
	nodes     = 3000
	zones     = 3
)

// A skewed cluster has a giant Service, ten large ones, and beside the many
// small ones a hundred of exactly the size for which a figure is given.
const (
	giantSize   = 5000
	largeSize   = 1000
	largeCount  = 10
	middleSize  = 25
	middleCount = 100
)

// cluster is a made-up cluster whose objects can be made again at any time;
// it holds only the sizes of its Services.
type cluster struct {
	sizes []int
	first []int // number of each Service's first endpoint
	total int
}

// newCluster spreads the endpoints over the Services: Service 0 is the giant,
// the next ten are large, the next hundred have 25, the rest is small, a few much larger
// than most. Small totals leave out Services that do not fit.
func newCluster(services, endpoints int) *cluster {
	c := &cluster{sizes: make([]int, services)}
	left := endpoints - services // every Service has an endpoint
	for i := range c.sizes {
		c.sizes[i] = 1
	}
	give := func(i, size int) {
		if i < services && left >= 2*size {
			c.sizes[i] = size
			left -= size - 1
		}
	}
	give(0, giantSize)
	for i := range largeCount {
		give(1+i, largeSize)
	}
	for i := range middleCount {
		give(1+largeCount+i, middleSize)
	}
	c.spread(min(1+largeCount+middleCount, services-1), left)
	for _, n := range c.sizes {
		c.first = append(c.first, c.total)
		c.total += n
	}
	return c
}

// spread hands out the rest in parts of exponentially distributed size.
func (c *cluster) spread(from, left int) {
	rng := rand.New(rand.NewPCG(1, 2))
	rest := c.sizes[from:]
	parts, sum := make([]float64, len(rest)), 0.0
	for i := range parts {
		parts[i] = rng.ExpFloat64()
		sum += parts[i]
	}
	given := 0
	for i := range rest {
		n := int(parts[i] / sum * float64(left))
		rest[i] += n
		given += n
	}
	for i := 0; given < left; i, given = i+1, given+1 {
		rest[i%len(rest)]++
	}
}

func (c *cluster) sliceCount(service int) int { return (c.sizes[service] + perSlice - 1) / perSlice }

func (c *cluster) slices() int {
	n := 0
	for i := range c.sizes {
		n += c.sliceCount(i)
	}
	return n
}

// nodeObjects are the cluster's Nodes.
func nodeObjects() []*corev1.Node {
	out := make([]*corev1.Node, nodes)
	for i := range out {
		out[i] = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName(i), Labels: map[string]string{
			topology.LabelHostname: nodeName(i),
			topology.LabelZone:     zoneName(i),
			topology.LabelRegion:   "eu-central-1",
		}}}
	}
	return out
}

// Names are as long as those of clusters in the wild.
func nodeName(i int) string {
	return fmt.Sprintf("ip-10-20-%03d-%03d.eu-central-1.compute.internal", i%nodes/200, i%nodes%200)
}

func zoneName(i int) string { return fmt.Sprintf("eu-central-1%c", 'a'+i%zones) }

func serviceName(i int) string { return fmt.Sprintf("frontend-%05d", i) }

// serviceObject is a LoadBalancer Service with a port; the first 2,500 have
// a node port as well, which is nearly all there are.
func serviceObject(i int) *corev1.Service {
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: serviceName(i), UID: uid("service", i)},
		Spec: corev1.ServiceSpec{
			Type:       corev1.ServiceTypeLoadBalancer,
			ClusterIP:  address(11, i),
			ClusterIPs: []string{address(11, i)},
			Selector:   map[string]string{"app": serviceName(i)},
			Ports:      []corev1.ServicePort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP}},
		},
	}
	if i < 2500 {
		svc.Spec.Ports[0].NodePort = int32(30000 + i)
	}
	svc.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: address(198, i)}}
	return svc
}

// sliceObject is an EndpointSlice of a Service. Of its endpoints the first
// replaced are others than at first: their Pods have been replaced.
func (c *cluster) sliceObject(service, slice, replaced int) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace,
			Name:      fmt.Sprintf("%s-%05d", serviceName(service), slice),
			UID:       uid("slice", c.first[service]+slice),
			Labels: map[string]string{
				discoveryv1.LabelServiceName: serviceName(service),
				discoveryv1.LabelManagedBy:   "endpointslice-controller.k8s.io",
			},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: "v1", Kind: "Service", Name: serviceName(service), UID: uid("service", service),
			}},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: ptr("http"), Port: ptr(int32(8080)), Protocol: ptr(corev1.ProtocolTCP)}},
	}
	from, to := slice*perSlice, min((slice+1)*perSlice, c.sizes[service])
	for i := from; i < to; i++ {
		n := c.first[service] + i
		if i-from < replaced {
			n += c.total
		}
		s.Endpoints = append(s.Endpoints, endpointObject(service, n))
	}
	return s
}

// endpointObject is endpoint number n as the slice controller writes it.
func endpointObject(service, n int) discoveryv1.Endpoint {
	return discoveryv1.Endpoint{
		Addresses: []string{address(10, n)},
		Conditions: discoveryv1.EndpointConditions{
			Ready: ptr(true), Serving: ptr(true), Terminating: ptr(false),
		},
		NodeName: ptr(nodeName(n)),
		Zone:     ptr(zoneName(n)),
		TargetRef: &corev1.ObjectReference{
			Kind: "Pod", Namespace: namespace, Name: podName(service, n), UID: uid("pod", n),
		},
	}
}

func podName(service, n int) string {
	return fmt.Sprintf("%s-7d4b9c6f58-%05x", serviceName(service), n%(1<<20))
}

// address is number n of the network first.0.0.0/8.
func address(first byte, n int) string {
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], uint32(n)+1)
	b[0] = first
	return netip.AddrFrom4(b).String()
}

func uid(kind string, n int) types.UID {
	rng := rand.New(rand.NewPCG(uint64(n), uint64(len(kind))))
	return types.UID(fmt.Sprintf("%08x-%04x-4%03x-8%03x-%012x",
		rng.Uint32(), rng.Uint32()&0xffff, rng.Uint32()&0xfff, rng.Uint32()&0xfff, rng.Uint64()&(1<<48-1)))
}

func ptr[T any](v T) *T { return &v }
