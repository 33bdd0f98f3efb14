package conformance

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	"github.com/weirlb/weir/perf/netlab"
)

// node is where Pods run: behind the bridge cni0 of a namespace, with addresses of a network.
type node struct {
	name    string
	ns      *netlab.Namespace
	network uint8
	last    uint8 // host number of the last Pod
}

// kubelet schedules and runs Pods: a process each, in a network namespace and a root directory of its own.
// Pods are Running and Ready once the process runs, since the manifests of the suite have no probes.
type kubelet struct {
	t      *testing.T
	lab    *netlab.Lab
	client kubernetes.Interface
	// images are programs by the name of the image, without registry and tag.
	images map[string]string
	nodes  []*node
	turn   int // of the node of the next Pod
	queue  workqueue.TypedRateLimitingInterface[string]
	pods   map[string]*process // by namespace/name
}

// process is a Pod that was started.
type process struct {
	*netlab.Daemon
	node *node
	veth string // on the node
	root string
}

// run follows the Pods until ctx ends.
func (k *kubelet) run(ctx context.Context) {
	k.pods = map[string]*process{}
	k.queue = workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[string](100*time.Millisecond, 5*time.Second))
	informer := informers.NewSharedInformerFactory(k.client, 0).Core().V1().Pods().Informer()
	add := func(o any) {
		if key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(o); err == nil {
			k.queue.Add(key)
		}
	}
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: add, UpdateFunc: func(_, o any) { add(o) }, DeleteFunc: add})
	if err != nil {
		k.t.Fatal(err)
	}
	go informer.RunWithContext(ctx)
	go func() {
		<-ctx.Done()
		k.queue.ShutDown()
	}()
	for {
		key, done := k.queue.Get()
		if done {
			return
		}
		if err := k.sync(ctx, informer.GetStore(), key); err == nil || apierrors.IsNotFound(err) {
			k.queue.Forget(key)
		} else if ctx.Err() == nil {
			if k.queue.NumRequeues(key) == 0 { // the suite makes Secrets after the Pods
				k.t.Logf("Pod %s has to wait: %v", key, err)
			}
			k.queue.AddRateLimited(key)
		}
		k.queue.Done(key)
	}
}

func (k *kubelet) sync(ctx context.Context, store cache.Store, key string) error {
	o, exists, err := store.GetByKey(key)
	if err != nil || !exists {
		k.stop(key)
		return err
	}
	pod := o.(*corev1.Pod)
	api := k.client.CoreV1().Pods(pod.Namespace)
	switch {
	case pod.DeletionTimestamp != nil:
		k.stop(key)
		zero := int64(0)
		return api.Delete(ctx, pod.Name, metav1.DeleteOptions{GracePeriodSeconds: &zero})
	case pod.Spec.NodeName == "":
		name := k.nodes[k.turn%len(k.nodes)].name
		k.turn++
		return api.Bind(ctx, &corev1.Binding{
			ObjectMeta: metav1.ObjectMeta{Name: pod.Name, Namespace: pod.Namespace}, Target: corev1.ObjectReference{Kind: "Node", Name: name},
		}, metav1.CreateOptions{})
	case k.pods[key] == nil:
		addr, err := k.start(ctx, key, pod)
		if err != nil {
			k.stop(key)
			return err
		}
		return k.ready(ctx, pod, addr)
	}
	return nil
}

// start makes the namespace of a Pod and starts the process.
func (k *kubelet) start(ctx context.Context, key string, pod *corev1.Pod) (netip.Addr, error) {
	var none netip.Addr
	var at *node
	for _, n := range k.nodes {
		if n.name == pod.Spec.NodeName {
			at = n
		}
	}
	if at == nil || at.last >= 250 {
		return none, fmt.Errorf("no place on Node %q", pod.Spec.NodeName)
	}
	at.last = max(at.last+1, 10)
	p := &process{node: at, veth: fmt.Sprintf("pod%d", at.last), root: filepath.Join(k.lab.Dir(), "pod-"+pod.Namespace+"-"+pod.Name)}
	k.pods[key] = p
	ns, err := k.lab.Namespace(fmt.Sprintf("%s-%d", at.name, at.last))
	if err != nil {
		return none, err
	}
	addr, gateway := netlab.Host4(at.network, at.last), netlab.Host4(at.network, 1)
	err = netlab.Connect(netlab.End{Namespace: ns, Name: "eth0", Addrs: []netip.Prefix{netip.PrefixFrom(addr, 24)}},
		netlab.End{Namespace: at.ns, Name: p.veth}, netlab.LinkConfig{})
	if err != nil {
		return none, err
	}
	if err := at.join(p.veth); err != nil {
		return none, err
	}
	if err := ns.AddRoute("eth0", netip.PrefixFrom(netip.IPv4Unspecified(), 0), gateway); err != nil {
		return none, err
	}
	program, err := k.populate(ctx, p.root, pod)
	if err != nil {
		return none, err
	}
	c := pod.Spec.Containers[0]
	cmd := &exec.Cmd{Path: program, Args: append([]string{program}, c.Args...), Dir: "/", Env: environment(pod, c.Env), SysProcAttr: &syscall.SysProcAttr{Chroot: p.root}}
	p.Daemon, err = ns.StartDaemon(cmd, p.root+".log")
	return addr, err
}

// join makes an interface a port of the bridge of the node.
func (n *node) join(ifname string) error {
	bridge, err := n.ns.Interface("cni0")
	if err != nil {
		return err
	}
	port, err := n.ns.Interface(ifname)
	if err != nil {
		return err
	}
	return n.ns.Netlink().LinkSetMaster(port, bridge)
}

// environment is that of a container.
func environment(pod *corev1.Pod, vars []corev1.EnvVar) []string {
	out := []string{}
	for _, v := range vars {
		if v.ValueFrom != nil && v.ValueFrom.FieldRef != nil {
			switch v.ValueFrom.FieldRef.FieldPath {
			case "metadata.name":
				v.Value = pod.Name
			case "metadata.namespace":
				v.Value = pod.Namespace
			}
		}
		out = append(out, v.Name+"="+v.Value)
	}
	return out
}

// populate fills the root directory of a Pod with the program of the image and the files of the volumes,
// and returns the path of the program there.
func (k *kubelet) populate(ctx context.Context, root string, pod *corev1.Pod) (string, error) {
	c := pod.Spec.Containers[0]
	name, _, _ := strings.Cut(filepath.Base(c.Image), ":")
	program := k.images[name]
	if program == "" {
		return "", fmt.Errorf("there is no image %s", c.Image)
	}
	if err := os.MkdirAll(root, 0o755); err != nil {
		return "", err
	}
	if err := os.Link(program, filepath.Join(root, name)); err != nil && !os.IsExist(err) {
		return "", err
	}
	for _, m := range c.VolumeMounts {
		for _, v := range pod.Spec.Volumes {
			if v.Name != m.Name {
				continue
			}
			files, err := k.files(ctx, pod.Namespace, v)
			if err != nil {
				return "", err
			}
			dir := filepath.Join(root, m.MountPath)
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return "", err
			}
			for file, text := range files {
				if err := os.WriteFile(filepath.Join(dir, file), text, 0o644); err != nil {
					return "", err
				}
			}
		}
	}
	return "/" + name, nil
}

// files are those of a volume of a Secret or a ConfigMap.
func (k *kubelet) files(ctx context.Context, namespace string, v corev1.Volume) (map[string][]byte, error) {
	out := map[string][]byte{}
	switch {
	case v.Secret != nil:
		s, err := k.client.CoreV1().Secrets(namespace).Get(ctx, v.Secret.SecretName, metav1.GetOptions{})
		if err != nil {
			return nil, fmt.Errorf("volume %s: %s", v.Name, err) // not a Pod that is gone
		}
		for _, i := range v.Secret.Items {
			out[i.Path] = s.Data[i.Key]
		}
	case v.ConfigMap != nil:
		m, err := k.client.CoreV1().ConfigMaps(namespace).Get(ctx, v.ConfigMap.Name, metav1.GetOptions{})
		if err != nil {
			return nil, fmt.Errorf("volume %s: %s", v.Name, err)
		}
		for key, text := range m.Data {
			out[key] = []byte(text)
		}
	}
	return out, nil
}

func (k *kubelet) ready(ctx context.Context, pod *corev1.Pod, addr netip.Addr) error {
	now := metav1.Now()
	status := corev1.PodStatus{Phase: corev1.PodRunning, PodIP: addr.String(), PodIPs: []corev1.PodIP{{IP: addr.String()}}, StartTime: &now}
	for _, kind := range []corev1.PodConditionType{corev1.PodReady, corev1.ContainersReady} {
		status.Conditions = append(status.Conditions, corev1.PodCondition{Type: kind, Status: corev1.ConditionTrue, LastTransitionTime: now})
	}
	patch, err := json.Marshal(map[string]any{"status": status})
	if err != nil {
		return err
	}
	_, err = k.client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	return err
}

// stop ends the process of a Pod, if it has one. The empty namespace ends with the lab.
func (k *kubelet) stop(key string) {
	p := k.pods[key]
	if p == nil {
		return
	}
	delete(k.pods, key)
	if p.Daemon != nil {
		if err := p.Kill(); err != nil {
			k.t.Error(err)
		}
	}
	_ = p.node.ns.Delete(p.veth)
	_ = os.RemoveAll(p.root)
}
