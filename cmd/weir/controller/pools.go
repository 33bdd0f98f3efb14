package controller

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/tools/cache"

	"github.com/weirlb/weir/cmd/weir/poolfile"
	"github.com/weirlb/weir/discovery/addresspool"
)

// How often files are read again, and definitions of resources are looked for.
const (
	fileInterval       = 10 * time.Second
	definitionInterval = 30 * time.Second
)

// versions are those of the API in which pools are read. Of a kind in several, the first counts.
var versions = []schema.GroupVersion{
	{Group: addresspool.GroupMetalLB, Version: "v1beta2"},
	{Group: addresspool.GroupMetalLB, Version: "v1beta1"},
	{Group: addresspool.GroupWeir, Version: "v1alpha1"},
}

// Keys in the queue that are no Services.
const (
	poolsKey = "pools" // read the pools
	allKey   = "all"   // look at every Service
)

// watchDefinitions starts a watch of every kind of pool object that the cluster has. It is
// called again from time to time: the definitions may be installed later.
func (c *controller) watchDefinitions(ctx context.Context) error {
	if time.Since(c.looked) < definitionInterval {
		return nil
	}
	for _, version := range versions {
		list, err := c.client.Discovery().ServerResourcesForGroupVersion(version.String())
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return fmt.Errorf("kinds of %s: %w", version, err)
		}
		for _, r := range list.APIResources {
			kind := version.Group + " " + r.Kind
			if strings.Contains(r.Name, "/") || c.watched[kind] != nil || !slices.Contains(addresspool.Kinds(version.Group), r.Kind) {
				continue
			}
			factory := dynamicinformer.NewDynamicSharedInformerFactory(c.dynamic, 0)
			informer := factory.ForResource(version.WithResource(r.Name))
			if _, err := informer.Informer().AddEventHandler(c.onAny(poolsKey)); err != nil {
				return err
			}
			factory.Start(ctx.Done())
			// The first list counts at a start: no Service must go without an address because a pool is not known yet.
			wait, cancel := context.WithTimeout(ctx, definitionInterval)
			synced := cache.WaitForCacheSync(wait.Done(), informer.Informer().HasSynced)
			cancel()
			if !synced {
				c.log.Warn("objects cannot be listed", "kind", r.Kind, "group", version.Group)
			}
			c.watched[kind] = informer.Lister()
		}
	}
	c.looked = time.Now()
	return nil
}

// readPools makes all pool objects the allocator's pools, and has every Service looked at if they
// have changed.
func (c *controller) readPools(ctx context.Context) error {
	if err := c.watchDefinitions(ctx); err != nil {
		return err
	}
	objects, err := poolfile.Read(c.o.Files)
	if err != nil {
		return err // the last pools stay
	}
	listed, ignored, err := c.listPools()
	if err != nil {
		return err
	}
	c.tellIgnored(ignored)
	objects = append(objects, listed...)
	slices.SortFunc(objects, func(a, b addresspool.Object) int { return bytes.Compare(a.JSON, b.JSON) })
	if c.read && slices.EqualFunc(objects, c.objects, func(a, b addresspool.Object) bool { return bytes.Equal(a.JSON, b.JSON) }) {
		return nil
	}
	c.objects, c.read = objects, true
	config := addresspool.Decode(objects)
	for _, f := range config.Faults {
		c.log.Warn("pool object", "err", f.Error(), "used", f.Used)
	}
	c.mu.Lock()
	c.allocator.SetPools(config.Pools)
	c.faults = len(config.Faults)
	c.mu.Unlock()
	c.queue.Add(allKey)
	c.log.Info("pools read", "pools", len(config.Pools), "faults", len(config.Faults))
	return nil
}

// listPools are the pool objects in the API server. Those of namespaces that do not count are only
// named: one of the same name, or with the same addresses, would take another out of service.
func (c *controller) listPools() (objects []addresspool.Object, ignored []string, err error) {
	for kind, lister := range c.watched {
		all, err := lister.List(everything)
		if err != nil {
			return nil, nil, err
		}
		for _, o := range all {
			m, err := meta.Accessor(o)
			if err != nil {
				return nil, nil, err
			}
			if !c.o.takesPoolsOf(m.GetNamespace()) {
				_, kind, _ := strings.Cut(kind, " ")
				ignored = append(ignored, kind+" "+m.GetNamespace()+"/"+m.GetName())
				continue
			}
			u, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
			if err != nil {
				return nil, nil, err
			}
			objects = append(objects, addresspool.Object{JSON: marshal(u)})
		}
	}
	slices.Sort(ignored)
	return objects, ignored, nil
}

// namespaceMetalLB is where MetalLB's manifests and documentation have the objects.
const namespaceMetalLB = "metallb-system"

// takesPoolsOf reports whether pool objects of a namespace in the API server count.
func (o *Options) takesPoolsOf(namespace string) bool {
	if o.PoolNamespaces == nil {
		return namespace == namespaceMetalLB || namespace == o.Namespace
	}
	return slices.Contains(o.PoolNamespaces, namespace) || slices.Contains(o.PoolNamespaces, "*")
}

// maxNamed is how many objects of other namespaces the log names.
const maxNamed = 10

// tellIgnored logs the objects that do not count, when they change.
func (c *controller) tellIgnored(objects []string) {
	if slices.Equal(objects, c.ignored) {
		return
	}
	if c.ignored = objects; len(objects) > 0 {
		c.log.Warn("pool objects of other namespaces do not count (--pool-namespaces)", "count", len(objects), "objects", objects[:min(len(objects), maxNamed)])
	}
}
