package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/weirlb/weir/discovery/addresspool"
	"github.com/weirlb/weir/discovery/kube/client"
)

// poolVersions are those of the API in which objects of address pools are read. Of a kind in several, the
// first counts.
var poolVersions = []schema.GroupVersion{
	{Group: addresspool.GroupMetalLB, Version: "v1beta2"},
	{Group: addresspool.GroupMetalLB, Version: "v1beta1"},
	{Group: addresspool.GroupWeir, Version: "v1alpha1"},
}

// poolPermissions are those that a PoolObjects needs. A kind that is not installed needs none, but
// may be tomorrow.
func poolPermissions(namespaces, secrets []string) (out []permission) {
	for _, namespace := range namespaces {
		for _, verb := range []string{"list", "watch"} {
			for _, group := range []string{addresspool.GroupMetalLB, addresspool.GroupWeir} {
				for _, kind := range addresspool.Kinds(group) {
					out = append(out, permission{verb, group, poolResource(kind), "these objects have no part in the announcement", namespace, ""})
				}
			}
			for _, name := range secrets {
				out = append(out, permission{verb, "", "secrets", "no session has this password", namespace, name})
			}
		}
	}
	return out
}

// poolResource is the resource of a kind, its plural.
func poolResource(kind string) string {
	name := strings.ToLower(kind)
	if stem, ok := strings.CutSuffix(name, "y"); ok {
		return stem + "ies"
	}
	return name + "s"
}

// firstLists is how long the first lists of objects are waited for.
const firstLists = 30 * time.Second

// PoolConfig selects objects of address pools and their announcement.
type PoolConfig struct {
	// REST reaches the API server; see ClientConfig.
	REST *rest.Config
	// Namespaces are those of the objects; "" is all.
	Namespaces []string
	// Secrets are names of Secrets in Namespaces whose passwords are read.
	Secrets []string
	// Changed is called after changes. It must not wait.
	Changed func()
	Log     *slog.Logger
}

// PoolObjects watches the objects of pools that an API server has. Those that were listed stay
// while it is away. Methods may be called from any goroutine.
type PoolObjects struct {
	cfg     PoolConfig
	client  *client.Client
	dynamic dynamic.Interface
	watch   *observer

	mu        sync.Mutex
	informers map[string]cache.SharedIndexInformer // by resourceName or secretName
	kinds     map[string]bool                      // group and kind that are watched; of Look alone
	looked    bool                                 // without an error
	err       error                                // of the last look for definitions
	since     time.Time                            // of the first error in a row
}

// PoolObject is an object of a pool, in JSON with sorted keys: it has name, namespace, labels and
// spec.
type PoolObject struct {
	Kind, Namespace, Name string
	JSON                  []byte
}

// NewPoolObjects asks for nothing before Look.
func NewPoolObjects(cfg PoolConfig) (*PoolObjects, error) {
	p := &PoolObjects{cfg: cfg, informers: map[string]cache.SharedIndexInformer{}, kinds: map[string]bool{}, watch: newObserver(cfg.Log)}
	rc := rest.CopyConfig(cfg.REST)
	rc.Wrap(p.watch.wrap)
	var err error
	if p.client, err = client.New(rc); err != nil {
		return nil, err
	}
	rc.ContentType, rc.AcceptContentTypes = "", "" // the dynamic client reads JSON
	if p.dynamic, err = dynamic.NewForConfig(rc); err != nil {
		return nil, fmt.Errorf("kubernetes client: %w", err)
	}
	return p, nil
}

// resourceName names the objects of a kind, such as "bgppeers.metallb.io of metallb-system".
func resourceName(group, resource, namespace string) string {
	name := strings.TrimSuffix(resource+"."+group, ".")
	if namespace != "" {
		name += " of " + namespace
	}
	return name
}

// Look starts a watch, until ctx ends, of every kind that the cluster has and that is not watched
// yet, and waits for the first lists, for a bounded time. It is to be called again from time to
// time: definitions may be installed later.
func (p *PoolObjects) Look(ctx context.Context) error {
	err := p.look(ctx)
	p.mu.Lock()
	if err != nil && p.err == nil {
		p.since = time.Now()
	}
	p.err, p.looked = err, p.looked || err == nil
	p.mu.Unlock()
	if err != nil {
		return err
	}
	wait, cancel := context.WithTimeout(ctx, firstLists)
	defer cancel()
	for name, informer := range p.all() {
		if !cache.WaitForCacheSync(wait.Done(), informer.HasSynced) && ctx.Err() == nil {
			p.cfg.Log.Warn("objects cannot be listed", "resource", name)
		}
	}
	return nil
}

func (p *PoolObjects) look(ctx context.Context) error {
	if err := p.watchSecrets(ctx); err != nil {
		return err
	}
	for _, version := range poolVersions {
		list, err := p.client.Resources(ctx, version)
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return fmt.Errorf("kinds of %s: %w", version, err)
		}
		for _, r := range list {
			kind := version.Group + " " + r.Kind
			if strings.Contains(r.Name, "/") || p.kinds[kind] || !slices.Contains(addresspool.Kinds(version.Group), r.Kind) {
				continue
			}
			for _, namespace := range p.cfg.Namespaces {
				objects := dynamicLists{p.dynamic.Resource(version.WithResource(r.Name)).Namespace(namespace)}
				if err := p.start(ctx, resourceName(version.Group, r.Name, namespace), objects, &unstructured.Unstructured{}); err != nil {
					return err
				}
			}
			p.kinds[kind] = true
		}
	}
	return nil
}

// dynamicLists are objects of a kind that this program has no type of.
type dynamicLists struct{ client dynamic.ResourceInterface }

func (d dynamicLists) ListWithContext(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	return d.client.List(ctx, o)
}

func (d dynamicLists) WatchWithContext(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	return d.client.Watch(ctx, o)
}

// start runs an informer until ctx ends.
func (p *PoolObjects) start(ctx context.Context, name string, from lists, of runtime.Object) error {
	i := cache.NewSharedIndexInformer(p.watch.observe(name, from), of, 0, cache.Indexers{})
	changed := func(any) { p.cfg.Changed() }
	if err := i.SetTransform(trimPoolObject); err != nil {
		return err
	}
	if err := i.SetWatchErrorHandlerWithContext(p.watch.watchFailed(name)); err != nil {
		return err
	}
	if _, err := i.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: changed, UpdateFunc: func(_, o any) { changed(o) }, DeleteFunc: changed}); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.informers[name] = i
	go i.RunWithContext(ctx)
	return nil
}

// trimPoolObject is a cache.TransformFunc: it keeps what is read.
func trimPoolObject(o any) (any, error) {
	switch o := o.(type) {
	case *unstructured.Unstructured:
		o.SetManagedFields(nil)
		o.SetAnnotations(nil)
		delete(o.Object, "status")
		if p, ok, _ := unstructured.NestedString(o.Object, "spec", "password"); ok && p != "" {
			return o, unstructured.SetNestedField(o.Object, "not kept", "spec", "password") // nothing but a fault needs it
		}
	case *corev1.Secret:
		o.ManagedFields, o.Annotations = nil, nil
		o.Data = map[string][]byte{corev1.BasicAuthPasswordKey: o.Data[corev1.BasicAuthPasswordKey]}
	}
	return o, nil
}

// ReadNodeLabels asks once for the labels of a Node, nil for one that is not there.
func ReadNodeLabels(ctx context.Context, rc *rest.Config, name string) (map[string]string, error) {
	server, err := client.New(withShortTimeout(rc))
	if err != nil {
		return nil, err
	}
	var list corev1.NodeList
	err = server.Nodes().List(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", name).String()}, &list)
	if err != nil || len(list.Items) == 0 {
		return nil, err
	}
	labels := list.Items[0].Labels
	if labels == nil {
		labels = map[string]string{}
	}
	return labels, nil
}

// trimmed is an object without fields that change while it means the same.
func trimmed(u *unstructured.Unstructured) map[string]any {
	meta := map[string]any{"name": u.GetName(), "namespace": u.GetNamespace()}
	if labels := u.GetLabels(); len(labels) > 0 {
		meta["labels"] = labels
	}
	return map[string]any{"apiVersion": u.GetAPIVersion(), "kind": u.GetKind(), "metadata": meta, "spec": u.Object["spec"]}
}

func (p *PoolObjects) all() map[string]cache.SharedIndexInformer {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := make(map[string]cache.SharedIndexInformer, len(p.informers))
	for name, i := range p.informers {
		out[name] = i
	}
	return out
}

// Synced reports whether all objects of the API server at the start have come. Those that may not
// be listed, or whose definition was removed, do not count: see Faults.
func (p *PoolObjects) Synced() bool {
	refused := map[string]bool{}
	for _, f := range p.watch.faults() {
		refused[f.Resource] = strings.HasPrefix(f.Reason, "403 ") || strings.HasPrefix(f.Reason, "404 ")
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for name, i := range p.informers {
		if !i.HasSynced() && !refused[name] {
			return false
		}
	}
	return p.looked
}

// Refused reports whether objects like this one were never listed, since the API server forbids it.
func (p *PoolObjects) Refused(o *PoolObject) bool {
	var head struct{ APIVersion string }
	if json.Unmarshal(o.JSON, &head) != nil {
		return false
	}
	group, _, _ := strings.Cut(head.APIVersion, "/")
	informers := p.all()
	return slices.ContainsFunc(p.watch.faults(), func(f Fault) bool {
		i := informers[f.Resource]
		return i != nil && !i.HasSynced() && strings.HasPrefix(f.Reason, "403 ") && slices.ContainsFunc(p.cfg.Namespaces, func(namespace string) bool {
			return (namespace == "" || namespace == o.Namespace) && f.Resource == resourceName(group, poolResource(o.Kind), namespace)
		})
	})
}

// Objects are those that the API server has told, sorted.
func (p *PoolObjects) Objects() ([]PoolObject, error) {
	var out []PoolObject
	for _, i := range p.all() {
		for _, o := range i.GetStore().List() {
			u, ok := o.(*unstructured.Unstructured)
			if !ok {
				continue
			}
			text, err := json.Marshal(trimmed(u))
			if err != nil {
				return nil, fmt.Errorf("%s %s/%s: %w", u.GetKind(), u.GetNamespace(), u.GetName(), err)
			}
			out = append(out, PoolObject{u.GetKind(), u.GetNamespace(), u.GetName(), text})
		}
	}
	slices.SortFunc(out, func(a, b PoolObject) int { return slices.Compare(a.JSON, b.JSON) })
	return out, nil
}

// Faults are the resources that cannot be listed or watched now. A definition that was removed
// with all its objects is none.
func (p *PoolObjects) Faults() []Fault {
	informers := p.all()
	out := slices.DeleteFunc(p.watch.faults(), func(f Fault) bool {
		i := informers[f.Resource]
		return i != nil && strings.HasPrefix(f.Reason, "404 ") && i.HasSynced() && len(i.GetStore().ListKeys()) == 0
	})
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err != nil {
		out = append(out, Fault{Resource: "definitions", Reason: p.err.Error(), Since: p.since})
	}
	return out
}
