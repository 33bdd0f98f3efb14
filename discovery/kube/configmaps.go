package kube

import (
	"context"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/weirlb/weir/discovery/kube/client"
)

// ConfigMaps watches ConfigMaps, each by its name: a Role may name them. Those that were told stay
// while the API server is away. Methods may be called from any goroutine.
type ConfigMaps struct {
	watch     *observer
	informers map[types.NamespacedName]cache.SharedIndexInformer
}

// configMapPermissions are those that a ConfigMaps needs.
func configMapPermissions(names []types.NamespacedName) (out []permission) {
	for _, n := range names {
		for _, verb := range []string{"list", "watch"} {
			out = append(out, permission{verb, "", "configmaps", "the deny list of it stays as it was", n.Namespace, n.Name})
		}
	}
	return out
}

// NewConfigMaps asks for nothing before Run. changed is called after changes. It must not wait.
func NewConfigMaps(rc *rest.Config, names []types.NamespacedName, changed func(), log *slog.Logger) (*ConfigMaps, error) {
	c := &ConfigMaps{watch: newObserver(log), informers: map[types.NamespacedName]cache.SharedIndexInformer{}}
	rc = rest.CopyConfig(rc)
	rc.Wrap(c.watch.wrap)
	server, err := client.New(rc)
	if err != nil {
		return nil, err
	}
	tell := func(any) { changed() }
	for _, n := range names {
		byName := fields.OneTermEqualSelector(metav1.ObjectNameField, n.Name)
		from := cache.NewListWatchFromClient(server.REST(corev1.SchemeGroupVersion), "configmaps", n.Namespace, byName)
		i := cache.NewSharedIndexInformer(c.watch.observe(configMapName(n), from), &corev1.ConfigMap{}, 0, cache.Indexers{})
		if err := i.SetTransform(trimConfigMap); err != nil {
			return nil, err
		}
		if err := i.SetWatchErrorHandlerWithContext(c.watch.watchFailed(configMapName(n))); err != nil {
			return nil, err
		}
		if _, err := i.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: tell, UpdateFunc: func(_, o any) { tell(o) }, DeleteFunc: tell}); err != nil {
			return nil, err
		}
		c.informers[n] = i
	}
	return c, nil
}

func configMapName(n types.NamespacedName) string { return "ConfigMap " + n.String() }

// trimConfigMap is a cache.TransformFunc: it keeps what is read. kubectl apply has the data in an
// annotation once more.
func trimConfigMap(o any) (any, error) {
	if m, ok := o.(*corev1.ConfigMap); ok {
		m.ManagedFields, m.Annotations = nil, nil
	}
	return o, nil
}

// Run watches until ctx ends.
func (c *ConfigMaps) Run(ctx context.Context) {
	var tasks sync.WaitGroup
	for _, i := range c.informers {
		tasks.Go(func() { i.RunWithContext(ctx) })
	}
	tasks.Wait()
}

// Settle waits until each ConfigMap is listed or cannot be, or ctx ends.
func (c *ConfigMaps) Settle(ctx context.Context) {
	for ctx.Err() == nil && !c.settled() {
		select {
		case <-ctx.Done():
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func (c *ConfigMaps) settled() bool {
	failed := map[string]bool{}
	for _, f := range c.Faults() {
		failed[f.Resource] = true
	}
	for n, i := range c.informers {
		if !i.HasSynced() && !failed[configMapName(n)] {
			return false
		}
	}
	return true
}

// Get returns a ConfigMap, nil if there is none. listed is false before the API server has told
// it. The ConfigMap must not be changed.
func (c *ConfigMaps) Get(n types.NamespacedName) (m *corev1.ConfigMap, listed bool) {
	i := c.informers[n]
	if i == nil || !i.HasSynced() {
		return nil, false
	}
	o, _, _ := i.GetStore().GetByKey(cache.NewObjectName(n.Namespace, n.Name).String()) // a thread-safe store has no errors
	m, _ = o.(*corev1.ConfigMap)
	return m, true
}

// Faults are the ConfigMaps that cannot be listed or watched now, by name.
func (c *ConfigMaps) Faults() []Fault { return c.watch.faults() }
