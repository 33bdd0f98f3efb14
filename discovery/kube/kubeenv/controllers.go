package main

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/controller-manager/pkg/informerfactory"
	"k8s.io/kubernetes/pkg/controller/deployment"
	"k8s.io/kubernetes/pkg/controller/endpoint"
	"k8s.io/kubernetes/pkg/controller/endpointslice"
	"k8s.io/kubernetes/pkg/controller/endpointslicemirroring"
	"k8s.io/kubernetes/pkg/controller/garbagecollector"
	"k8s.io/kubernetes/pkg/controller/namespace"
	"k8s.io/kubernetes/pkg/controller/replicaset"
)

// Defaults of kube-controller-manager.
const (
	syncs               = 5
	maxEndpointsInSlice = 100
	maxMirrored         = 1000
)

// startControllers runs the controllers, and returns when their informers
// have synced.
func startControllers(ctx context.Context, o *options, cfg *rest.Config) error {
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return err
	}
	meta, err := metadata.NewForConfig(cfg)
	if err != nil {
		return err
	}
	f := informers.NewSharedInformerFactory(client, 0)
	core, slices := f.Core().V1(), f.Discovery().V1().EndpointSlices()
	run := []func(){}
	add := func(r func(context.Context, int)) { run = append(run, func() { r(ctx, syncs) }) }

	add(endpointslice.NewController(ctx, core.Pods(), core.Services(), core.Nodes(), slices, maxEndpointsInSlice, client, o.batch).Run)
	add(endpointslicemirroring.NewController(ctx, core.Endpoints(), slices, core.Services(), maxMirrored, client, o.batch).Run)
	if o.endpoints {
		add(endpoint.NewEndpointController(ctx, core.Pods(), core.Services(), core.Endpoints(), client, o.batch).Run)
	}
	add(namespace.NewNamespaceController(ctx, client, meta, client.Discovery().ServerPreferredNamespacedResources,
		core.Namespaces(), 5*time.Minute, corev1.FinalizerKubernetes).Run)

	if o.deployments {
		d, err := deployment.NewDeploymentController(ctx, f.Apps().V1().Deployments(), f.Apps().V1().ReplicaSets(), core.Pods(), client)
		if err != nil {
			return fmt.Errorf("deployment controller: %w", err)
		}
		add(d.Run)
		add(replicaset.NewReplicaSetController(ctx, f.Apps().V1().ReplicaSets(), core.Pods(), client, replicaset.BurstReplicas).Run)
	}

	mapper := restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(client.Discovery()))
	started := make(chan struct{})
	gc, err := garbagecollector.NewGarbageCollector(ctx, client, meta, mapper, garbagecollector.DefaultIgnoredResources(),
		informerfactory.NewInformerFactory(f, metadatainformer.NewSharedInformerFactory(meta, 0)), started)
	if err != nil {
		return fmt.Errorf("garbage collector: %w", err)
	}
	run = append(run,
		func() { gc.Run(ctx, syncs, 30*time.Second) },
		func() { gc.Sync(ctx, client.Discovery(), 30*time.Second) },
	)

	f.Start(ctx.Done())
	for kind, ok := range f.WaitForCacheSync(ctx.Done()) {
		if !ok {
			return fmt.Errorf("the informer of %s has not synced", kind)
		}
	}
	close(started)
	for _, r := range run {
		go r()
	}
	return nil
}
