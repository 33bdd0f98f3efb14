package controller

import (
	"context"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
)

// annotationRests is the annotation of the Lease with the addresses that rest, for the controller
// that leads next. Without a Lease a start knows none.
const annotationRests = "weir.dev/resting-addresses"

const (
	// restsInterval is the least time between two records: holding the Lease needs it, too.
	restsInterval = time.Second
	// lastRecord is the time limit of the record at the end.
	lastRecord = 2 * time.Second
)

// takeRests takes over the addresses that rest from the controller that led before.
func (c *controller) takeRests(ctx context.Context) {
	if c.o.Lease == "" {
		return
	}
	lease, err := c.client.Leases(c.o.Namespace).Get(ctx, c.o.Lease)
	if err == nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		err = c.allocator.TakeRests(lease.Annotations[annotationRests], time.Now())
	}
	if err != nil {
		c.log.Warn("addresses that rest are not known: another namespace may get them by name", "err", err)
	}
}

// recordRests records the addresses that rest, while this controller holds the Lease.
func (c *controller) recordRests(ctx context.Context) error {
	if c.o.Lease == "" {
		return nil
	}
	c.mu.Lock()
	record := c.allocator.Rests(time.Now())
	c.mu.Unlock()
	leases := c.client.Leases(c.o.Namespace)
	return retry.RetryOnConflict(retry.DefaultRetry, func() error {
		lease, err := leases.Get(ctx, c.o.Lease)
		if err != nil {
			return err
		}
		if holder := lease.Spec.HolderIdentity; holder == nil || *holder != c.o.Identity || lease.Annotations[annotationRests] == record {
			return nil
		}
		metav1.SetMetaDataAnnotation(&lease.ObjectMeta, annotationRests, record)
		_, err = leases.Update(ctx, lease)
		return err
	})
}
