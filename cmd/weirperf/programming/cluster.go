package programming

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/weirlb/weir/discovery/kube/client"
	"github.com/weirlb/weir/perf/netlab"
	"github.com/weirlb/weir/perf/netlab/patience"
)

const (
	clusterNamespace = "default"
	nodeName         = "edge-1"
	servicePort      = 80
	endpointPort     = 8080
	// writers make objects at the same time. The API server waits for the disk, and makes one write
	// of several.
	writers = 64
	// startWithin is for the API server on a quiet machine, which takes 2 seconds.
	startWithin = time.Minute
)

// Addresses of the cluster.
var (
	serviceNet  = netip.MustParsePrefix("10.96.0.0/16") // kubeenv's default
	endpointNet = netip.MustParsePrefix("10.64.0.0/16")
)

// cluster is a running API server, and the Services in it.
type cluster struct {
	kubeconfig string
	server     string // 127.0.0.1:PORT
	client     *client.Client

	addrs   []netip.Addr // ClusterIPs
	changed []int        // how often the endpoint of each Service was replaced

	dir   string
	cmd   *exec.Cmd
	stdin io.Closer
}

// startCluster starts an API server without controllers: this program writes the slices.
func startCluster(program string) (_ *cluster, err error) {
	c := &cluster{}
	if c.dir, err = os.MkdirTemp("", "weirperf-programming"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.Close())
		}
	}()
	log, err := os.Create(filepath.Join(c.dir, "kubeenv.log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	c.cmd = exec.Command(program, "-dir", c.dir, "-controllers=false", "-apiserver-args",
		"--enable-priority-and-fairness=false --max-requests-inflight=0 --max-mutating-requests-inflight=0")
	c.cmd.Stderr = log
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C ends the measurement first
	if c.stdin, err = c.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := c.cmd.Start(); err != nil {
		return nil, fmt.Errorf("kubeenv: %w", err)
	}
	var ready struct{ Kubeconfig, Server string }
	line := make(chan []byte, 1)
	go func() {
		l, _ := bufio.NewReader(out).ReadBytes('\n')
		line <- l
	}()
	select {
	case l := <-line:
		err = json.Unmarshal(l, &ready)
	case <-time.After(patience.For(startWithin)):
		err = errors.New("not ready in time")
	}
	if err != nil {
		said, _ := os.ReadFile(log.Name())
		return nil, fmt.Errorf("kubeenv: %w: %s", err, said[max(0, len(said)-2000):])
	}
	c.kubeconfig, c.server = ready.Kubeconfig, strings.TrimPrefix(ready.Server, "https://")
	return c, c.connect()
}

func (c *cluster) connect() error {
	cfg, err := clientcmd.BuildConfigFromFlags("", c.kubeconfig)
	if err != nil {
		return err
	}
	cfg.QPS = -1
	cfg.ContentType = "application/vnd.kubernetes.protobuf"
	c.client, err = client.New(cfg)
	return err
}

// Close ends the API server and removes the state.
func (c *cluster) Close() error {
	if c.cmd != nil && c.cmd.Process != nil {
		_ = c.stdin.Close()
		_ = c.cmd.Process.Kill()
		_ = c.cmd.Wait() // killed: an error in any case
	}
	return os.RemoveAll(c.dir)
}

// makeNode makes the node that the peers run on.
func (c *cluster) makeNode(ctx context.Context) error {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName}}
	n, err := c.client.Nodes().Create(ctx, n)
	if err != nil {
		return err
	}
	n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: netlab.Host4(netlab.FabricNet, 1).String()}}
	_, err = c.client.Nodes().UpdateStatus(ctx, n)
	return err
}

// grow makes Services with their slices until there are n.
func (c *cluster) grow(ctx context.Context, n int) error {
	from := len(c.addrs)
	c.addrs = append(c.addrs, make([]netip.Addr, n-from)...)
	c.changed = append(c.changed, make([]int, n-from)...)
	var wait sync.WaitGroup
	errs := make([]error, writers)
	for w := range errs {
		wait.Go(func() {
			for i := from + w; i < n && errs[w] == nil; i += writers {
				errs[w] = c.makeService(ctx, i)
			}
		})
	}
	wait.Wait()
	return errors.Join(errs...)
}

func (c *cluster) makeService(ctx context.Context, i int) error {
	s, err := c.client.Services(clusterNamespace).Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: serviceName(i)},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "main", Port: servicePort, Protocol: corev1.ProtocolTCP}}},
	})
	if err != nil {
		return err
	}
	if c.addrs[i], err = netip.ParseAddr(s.Spec.ClusterIP); err != nil {
		return err
	}
	return c.slices((*rest.RESTClient).Post).Body(c.slice(i)).Do(ctx).Error()
}

// slices begins a request about EndpointSlices.
func (c *cluster) slices(verb func(*rest.RESTClient) *rest.Request) *rest.Request {
	r := c.client.REST(discoveryv1.SchemeGroupVersion).(*rest.RESTClient)
	return verb(r).Namespace(clusterNamespace).Resource("endpointslices")
}

// replace writes a slice that has changed at a time.
func (c *cluster) replace(ctx context.Context, s *discoveryv1.EndpointSlice, at time.Time) error {
	s.Annotations = map[string]string{corev1.EndpointsLastChangeTriggerTime: at.Format(time.RFC3339Nano)}
	return c.slices((*rest.RESTClient).Put).Name(s.Name).Body(s).Do(ctx).Error()
}

func serviceName(i int) string { return fmt.Sprintf("service-%05d", i) }

// slice is the EndpointSlice of Service i.
func (c *cluster) slice(i int) *discoveryv1.EndpointSlice {
	name, port, proto, ready, node := "main", int32(endpointPort), corev1.ProtocolTCP, true, "node-a"
	return &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Name: serviceName(i), Labels: map[string]string{
			discoveryv1.LabelServiceName: serviceName(i), discoveryv1.LabelManagedBy: "weirperf"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: &name, Port: &port, Protocol: &proto}},
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{endpoint(i, c.changed[i]).String()}, NodeName: &node,
			Conditions: discoveryv1.EndpointConditions{Ready: &ready, Serving: &ready}}},
	}
}

// endpoint is the endpoint of Service i after so many changes: one of two in turn.
func endpoint(i, changed int) netip.Addr {
	n := 2*i + changed%2 + 1
	return netip.AddrFrom4([4]byte{10, 64, byte(n >> 8), byte(n)})
}
