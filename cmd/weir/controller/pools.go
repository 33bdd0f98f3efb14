package controller

import (
	"bytes"
	"context"
	"slices"
	"time"

	"github.com/weirlb/weir/cmd/weir/poolfile"
	"github.com/weirlb/weir/discovery/addresspool"
)

// How often files are read again, and definitions of resources are looked for.
const (
	fileInterval       = 10 * time.Second
	definitionInterval = 30 * time.Second
)

// Keys in the queue that are no Services.
const (
	poolsKey = "pools" // read the pools
	allKey   = "all"   // look at every Service
	restsKey = "rests" // record the addresses that rest
)

// watchDefinitions starts a watch of every kind of pool object that the cluster has. It is
// called again from time to time: the definitions may be installed later. The first lists count at
// a start: no Service must go without an address because a pool is not known yet.
func (c *controller) watchDefinitions(ctx context.Context) error {
	if time.Since(c.looked) < definitionInterval {
		return nil
	}
	if err := c.pools.Look(ctx); err != nil {
		return err
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
	all, err := c.pools.Objects()
	for _, o := range all {
		if c.o.takesPoolsOf(o.Namespace) {
			objects = append(objects, addresspool.Object{JSON: o.JSON})
		} else {
			ignored = append(ignored, o.Kind+" "+o.Namespace+"/"+o.Name)
		}
	}
	slices.Sort(ignored)
	return objects, ignored, err
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
