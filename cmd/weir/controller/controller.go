// Package controller is `weir controller`: it gives Services of type LoadBalancer their
// addresses, from pools. The choice is that of discovery/addresspool; this package watches the API
// server and writes the status of Services. The status is the only record.
package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	"github.com/weirlb/weir/cmd/weir/controller/gateways"
	"github.com/weirlb/weir/discovery/addresspool"
	"github.com/weirlb/weir/discovery/kube"
	"github.com/weirlb/weir/discovery/kube/client"
)

// Options are the options of the command.
type Options struct {
	Kubeconfig   string
	Files        []string // of pool objects, beside those of the API server
	Class        string   // spec.loadBalancerClass of the Services
	DefaultClass bool     // Services without a class too
	Namespace    string   // of the Lease
	// PoolNamespaces are those of pool objects in the API server: "*" are all, and nil is
	// MetalLB's and Namespace.
	PoolNamespaces []string
	Lease          string // name; empty: no election
	Identity       string // in the Lease
	Metrics        string // address:port; empty: none
	Gateways       bool   // serve objects of the Gateway API
}

// writers are how many writes of status, which wait for the API server, go at once.
const writers = 16

// warnAfter is how many writes of a Service's status fail in a row, as by a conflict, without a warning.
const warnAfter = 5

// controller allocates while it leads.
type controller struct {
	o        Options
	log      *slog.Logger
	client   *client.Client
	rest     *rest.Config
	recorder *recorder
	queue    workqueue.TypedRateLimitingInterface[string]

	// turn is held from taking a key to deciding about it: the oldest Service chooses first, however
	// many writers there are.
	turn sync.Mutex

	services, namespaces cache.Store
	// pools, objects, read, looked and ignored are of who works on poolsKey.
	pools   *kube.PoolObjects
	objects []addresspool.Object
	read    bool
	looked  time.Time // for definitions
	ignored []string  // objects of other namespaces, as last logged

	health  *health
	leading atomic.Bool
	written atomic.Int64 // statuses

	mu        sync.Mutex // guards all below
	allocator *addresspool.Allocator
	// outcomes are the reasons of the last decision about Services of this controller.
	outcomes map[string]string
	rewrites map[string]rewrite // by Service
	foreign  map[string]bool    // Services of the class that are left alone, and told so
	faults   int
}

// Run allocates until ctx ends. Of several, the holder of the Lease does; losing the
// Lease is an error, after which the process must end.
func Run(ctx context.Context, o Options, log *slog.Logger) error {
	cfg, err := kube.ClientConfig(o.Kubeconfig)
	if err != nil {
		return err
	}
	cfg.QPS = -1 // the number of writers is the limit
	server, err := client.New(cfg)
	if err != nil {
		return err
	}
	recorder := newRecorder(server, log)
	defer recorder.start(ctx)()
	c := &controller{
		o: o, log: log, client: server, rest: cfg, health: newHealth(), recorder: recorder,
		allocator: addresspool.New(nil), outcomes: map[string]string{}, rewrites: map[string]rewrite{}, foreign: map[string]bool{},
	}
	stop, err := c.serve(ctx)
	if err != nil {
		return err
	}
	defer stop()
	if err := c.tryCaches(ctx); err != nil {
		return withoutEnd(ctx, err)
	}
	c.health.set(nil)
	if o.Lease == "" {
		return c.lead(ctx)
	}
	return c.elect(ctx)
}

// elect waits for the Lease, leads, and gives the Lease back after the last write.
func (c *controller) elect(ctx context.Context) error {
	e := newElector(c.client.Leases(c.o.Namespace), c.o.Lease, c.o.Namespace, c.o.Identity, c.log)
	c.health.follow(e)
	if !e.acquire(ctx) {
		return nil
	}
	c.log.Info("leading", "lease", c.o.Namespace+"/"+c.o.Lease, "identity", c.o.Identity)
	// The Lease is renewed until the last write is done, which is after the end of ctx.
	hold, end := context.WithCancel(context.WithoutCancel(ctx))
	work, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var task sync.WaitGroup
	task.Go(func() { stop(e.renew(hold)) })
	err := c.lead(work)
	end()
	task.Wait()
	if lost := context.Cause(work); errors.Is(lost, errLost) {
		return lost
	}
	e.release(context.WithoutCancel(ctx))
	return err
}

// lead allocates until ctx ends.
func (c *controller) lead(ctx context.Context) error {
	k, err := c.startCaches(ctx)
	if k != nil {
		defer k.shutdown()
	}
	if err != nil {
		return withoutEnd(ctx, err)
	}
	c.leading.Store(true)
	defer c.leading.Store(false)
	c.queue = workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[string](50*time.Millisecond, time.Minute))
	defer c.queue.ShutDown()
	c.services, c.namespaces = k.services.GetStore(), k.namespaces.GetStore()
	c.pools, err = kube.NewPoolObjects(kube.PoolConfig{REST: c.rest, Namespaces: []string{corev1.NamespaceAll}, Changed: func() { c.queue.Add(poolsKey) }, Log: c.log})
	if err != nil {
		return err
	}
	if err := c.readPools(ctx); err != nil {
		return err
	}
	c.takeRests(ctx)
	c.adopt()
	if _, err := k.services.AddEventHandler(c.onAny("")); err != nil {
		return err
	}
	if _, err := k.namespaces.AddEventHandler(c.onAny(allKey)); err != nil {
		return err
	}
	var work sync.WaitGroup
	for range writers {
		work.Go(func() {
			for c.next(ctx) {
			}
		})
	}
	work.Go(func() { c.refresh(ctx) })
	if c.o.Gateways {
		work.Go(func() {
			o := gateways.Config{Client: c.client, Services: k.services, Namespaces: k.namespaces, Class: c.o.Class, Log: c.log}
			if c.o.Lease != "" {
				o.Installation = c.o.Namespace + "/" + c.o.Lease
			}
			if err := gateways.Run(ctx, o); err != nil {
				c.log.Error("gateways are not served", "err", err)
			}
		})
	}
	<-ctx.Done()
	c.queue.ShutDown()
	work.Wait()
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastRecord)
	defer cancel()
	if err := c.recordRests(last); err != nil {
		c.log.Warn("addresses that rest are not recorded", "err", err)
	}
	return nil
}

// withoutEnd is err, nil after the end of ctx.
func withoutEnd(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// upToDate has a first list contain all that was written before. By default it is the API server's
// watch cache, which may lack the last writes of the controller that led before.
func upToDate(o *metav1.ListOptions) {
	if o.ResourceVersion == "0" {
		o.ResourceVersion = ""
	}
}

// byAge is the order in which Services choose addresses, the oldest first.
func byAge(a, b *corev1.Service) int {
	if d := a.CreationTimestamp.Compare(b.CreationTimestamp.Time); d != 0 {
		return d
	}
	return strings.Compare(key(a), key(b))
}

// allByAge is all Services, in that order.
func (c *controller) allByAge() []*corev1.Service {
	all := objects[*corev1.Service](c.services)
	slices.SortFunc(all, byAge)
	return all
}

// adopt takes over the addresses of all Services, before the first is allocated, and queues
// them, the oldest first.
func (c *controller) adopt() {
	all := c.allByAge()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, svc := range all {
		if svc.Spec.Type != corev1.ServiceTypeLoadBalancer {
			continue
		}
		s, _ := c.describe(svc)
		for _, loser := range c.allocator.Adopt(s, time.Now()) {
			c.log.Warn("an address is in the status of two Services that may not share it", "service", loser, "other", s.Name)
		}
	}
	for _, svc := range all {
		c.queue.Add(key(svc))
	}
	c.log.Info("services adopted", "services", len(all))
}

// onAny queues a key for every event; "" stands for the object's own.
func (c *controller) onAny(fixed string) cache.ResourceEventHandler {
	add := func(o any) {
		name := fixed
		if name == "" {
			var err error
			if name, err = cache.DeletionHandlingMetaNamespaceKeyFunc(o); err != nil {
				return
			}
		}
		c.queue.Add(name)
	}
	return cache.ResourceEventHandlerFuncs{AddFunc: add, UpdateFunc: func(_, o any) { add(o) }, DeleteFunc: add}
}

// next works on a key, and is false at the end.
func (c *controller) next(ctx context.Context) bool {
	c.turn.Lock()
	name, end := c.queue.Get()
	var svc *corev1.Service
	var d *decision
	if !end && strings.Contains(name, "/") {
		svc, d = c.decide(name)
	}
	c.turn.Unlock()
	if end {
		return false
	}
	defer c.queue.Done(name)
	var err error
	switch name {
	case poolsKey:
		if err = c.readPools(ctx); err != nil {
			c.log.Warn("pools cannot be read: the last ones stay", "err", err)
		}
	case restsKey:
		err = c.recordRests(ctx)
	case allKey:
		c.lookAtAll()
	default:
		if svc != nil && d != nil {
			err = c.write(ctx, svc, d)
		}
	}
	if err != nil && ctx.Err() == nil {
		if c.log.Debug("try again", "key", name, "err", err); c.queue.NumRequeues(name) == warnAfter && strings.Contains(name, "/") {
			c.log.Warn("a Service's status cannot be written", "service", name, "err", err)
		}
		c.queue.AddRateLimited(name)
		return true
	}
	c.queue.Forget(name)
	return true
}

// lookAtAll queues every Service of type LoadBalancer.
func (c *controller) lookAtAll() {
	for _, svc := range c.allByAge() {
		if svc.Spec.Type == corev1.ServiceTypeLoadBalancer {
			c.queue.Add(key(svc))
		}
	}
}

// refresh reads files again, looks for definitions that were installed later, and whether the caches
// can be current.
func (c *controller) refresh(ctx context.Context) {
	tick := time.NewTicker(fileInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			c.queue.Add(poolsKey)
			if err := c.tryLists(ctx); ctx.Err() == nil {
				c.health.set(err)
			}
		}
	}
}

// identity is the default name in the Lease: the Pod's name is its host name.
func identity() string {
	host, err := os.Hostname()
	if err != nil {
		host = "weir"
	}
	return fmt.Sprintf("%s_%d", host, os.Getpid())
}
