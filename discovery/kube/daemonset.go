package kube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"github.com/weirlb/weir/discovery/kube/client"
)

// ErrNoDaemonSet means that Config.DaemonSet names none.
var ErrNoDaemonSet = errors.New("kubernetes: no DaemonSet of this process is known")

// daemonSet follows the DaemonSet of this process's Pod. At the end of the Pod it tells a
// rollout, after which the node gets another Pod, from an uninstall.
//
// The API server is asked at the end, and the DaemonSet is watched before. An uninstall
// deletes Role and ServiceAccount right after the DaemonSet, mostly before the kubelet ends
// the Pod: the question is then denied, while a watch that is open still has the deletion.
type daemonSet struct {
	name   types.NamespacedName
	client *client.Client
	node   *nodeState
	log    *slog.Logger
	// gone is true if the watch has told that the DaemonSet is deleted or being deleted.
	gone atomic.Bool
}

func newDaemonSet(name types.NamespacedName, c *rest.Config, node *nodeState, log *slog.Logger) (*daemonSet, error) {
	// Apart from the client of the informers, whose requests are counted as the source's.
	c = rest.CopyConfig(c)
	c.QPS, c.Burst = -1, 0
	own, err := client.New(c)
	if err != nil {
		return nil, err
	}
	return &daemonSet{name: name, client: own, node: node, log: log}, nil
}

const (
	// watchAgain is the least time between two watches; the time is spread up to its double.
	watchAgain = 10 * time.Second
	// getTimeout is the time limit of a request before a watch.
	getTimeout = 10 * time.Second
	// nextAgain is the time between two requests while NextPod has no answer.
	nextAgain = 100 * time.Millisecond
)

// run watches the DaemonSet until ctx ends. An error costs knowledge before the end of the
// Pod alone: the reason is logged if it changes.
func (d *daemonSet) run(ctx context.Context) {
	logged := ""
	for ctx.Err() == nil {
		text := ""
		if err := d.follow(ctx); err != nil && ctx.Err() == nil {
			text = err.Error()
		}
		if text != "" && text != logged {
			d.log.Warn("the DaemonSet of this Pod cannot be watched", "daemonSet", d.name, "err", text)
		}
		logged = text
		select {
		case <-ctx.Done():
		case <-time.After(wait.Jitter(watchAgain, 1)):
		}
	}
}

// follow is a single watch, from the present state on. It returns when the watch ends.
func (d *daemonSet) follow(ctx context.Context) error {
	getting, cancel := context.WithTimeout(ctx, getTimeout)
	defer cancel()
	sets := d.client.DaemonSets(d.name.Namespace)
	now, err := sets.Get(getting, d.name.Name)
	if isDeleted(err) {
		d.gone.Store(true)
	}
	if err != nil {
		return err
	}
	d.gone.Store(now.DeletionTimestamp != nil)
	w, err := sets.Watch(ctx, metav1.ListOptions{
		FieldSelector:   fields.OneTermEqualSelector(metav1.ObjectNameField, d.name.Name).String(),
		ResourceVersion: now.ResourceVersion,
	})
	if err != nil {
		return err
	}
	defer w.Stop()
	for e := range w.ResultChan() {
		if e.Type == watch.Error {
			return apierrors.FromObject(e.Object)
		}
		if ds, ok := e.Object.(*appsv1.DaemonSet); ok {
			d.gone.Store(e.Type == watch.Deleted || ds.DeletionTimestamp != nil)
		}
	}
	return nil
}

// isDeleted reports whether err is the API server's word that an object does not exist. A
// 404 of anything in between, such as a proxy without a backend, is not.
func isDeleted(err error) bool {
	return apierrors.IsNotFound(err) && !apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse)
}

// NextPod asks the API server whether the DaemonSet of Config.DaemonSet runs another Pod on
// this node after the Pod of this process. ends is "" if so, else the reason. Requests are
// repeated until an answer or the end of ctx; the error is that of the last request then.
func (s *Source) NextPod(ctx context.Context) (ends string, err error) {
	if s.daemonSet == nil {
		return "", ErrNoDaemonSet
	}
	return s.daemonSet.next(ctx)
}

func (d *daemonSet) next(ctx context.Context) (ends string, err error) {
	for {
		if ok, reason := d.node.eligible(); !ok {
			return reason, nil
		}
		ends, e := d.ask(ctx)
		if e == nil {
			return ends, nil
		}
		if err == nil || ctx.Err() == nil { // the end of ctx says less than the error before
			err = e
		}
		if d.gone.Load() {
			return fmt.Sprintf("DaemonSet %s is deleted", d.name), nil
		}
		select {
		case <-ctx.Done():
			return "", err
		case <-time.After(nextAgain):
		}
	}
}

// ask asks once. An orphaned Pod (kubectl delete --cascade=orphan) has no DaemonSet any more
// and no next Pod. A DaemonSet that was created again with the name adopts the Pod, and
// replaces it: the UID does not count.
func (d *daemonSet) ask(ctx context.Context) (ends string, err error) {
	ds, err := d.client.DaemonSets(d.name.Namespace).Get(ctx, d.name.Name)
	switch {
	case isDeleted(err):
		return fmt.Sprintf("DaemonSet %s is deleted", d.name), nil
	case err != nil:
		return "", err
	case ds.DeletionTimestamp != nil:
		return fmt.Sprintf("DaemonSet %s is being deleted", d.name), nil
	case !selects(ds, d.node.object()):
		return fmt.Sprintf("DaemonSet %s does not select node %s any more", d.name, d.node.name), nil
	}
	// The Pods of a namespace may be deleted before the DaemonSet.
	ns, err := d.client.Namespaces().Get(ctx, d.name.Namespace)
	if err == nil && ns.DeletionTimestamp != nil {
		return fmt.Sprintf("namespace %s is being deleted", d.name.Namespace), nil
	}
	return "", nil // also without the right to read the namespace
}

// selects reports whether Pods of the DaemonSet may run on a node, by nodeSelector and
// nodeAffinity. Taints are not read: the chart's Pods tolerate all. A node or rule that is
// not known, or not valid, excludes nothing.
func selects(ds *appsv1.DaemonSet, node *corev1.Node) bool {
	if node == nil {
		return true
	}
	ok, err := nodeaffinity.GetRequiredNodeAffinity(&corev1.Pod{Spec: ds.Spec.Template.Spec}).Match(node)
	return ok || err != nil
}
