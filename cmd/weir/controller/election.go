package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weirlb/weir/discovery/kube/client"
)

// Times of the Lease, as of the controllers of Kubernetes: another takes over 15 s after it has seen
// the holder's last renewal, and the holder ends 10 s after it.
const (
	leaseDuration = 15 * time.Second
	renewDeadline = 10 * time.Second
	retryPeriod   = 2 * time.Second
)

var (
	errHeld = errors.New("another controller holds the Lease")
	errLost = errors.New("the Lease is lost: another controller leads")
)

// elector holds a Lease, by the protocol of client-go's leaderelection, whose package needs the whole
// clientset. Clocks of two machines are never compared: a Lease is free when its times have not
// changed, by the own clock, for as long as it says.
type elector struct {
	leases    client.Objects[coordinationv1.Lease, *coordinationv1.Lease]
	name      string
	namespace string
	identity  string
	log       *slog.Logger

	// seen is the Lease as last read, and since when it is so; of one goroutine.
	seen  coordinationv1.LeaseSpec
	since time.Time

	mu      sync.Mutex
	renewed time.Time // zero: not held
}

func newElector(leases client.Objects[coordinationv1.Lease, *coordinationv1.Lease], name, namespace, identity string, log *slog.Logger) *elector {
	return &elector{leases: leases, name: name, namespace: namespace, identity: identity, log: log}
}

// acquire waits until this process holds the Lease, and reports false if ctx ends first.
func (e *elector) acquire(ctx context.Context) bool {
	for said := ""; ; {
		err := e.try(ctx)
		if err == nil {
			return true
		}
		if text := err.Error(); !errors.Is(err, errHeld) && ctx.Err() == nil && text != said {
			said = text
			e.log.Warn("the Lease cannot be read or written", "lease", e.namespace+"/"+e.name, "err", err)
		}
		select {
		case <-ctx.Done():
			return false
		case <-time.After(retryPeriod + rand.N(retryPeriod)):
		}
	}
}

// renew renews the Lease until ctx ends. The error is errLost: another has it, or it could not be
// renewed in time.
func (e *elector) renew(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(retryPeriod):
		}
		e.mu.Lock()
		deadline := e.renewed.Add(renewDeadline)
		e.mu.Unlock()
		attempt, cancel := context.WithDeadline(ctx, deadline)
		err := e.try(attempt)
		cancel()
		switch {
		case err == nil || ctx.Err() != nil:
		case errors.Is(err, errHeld) || !time.Now().Before(deadline):
			return fmt.Errorf("%w: %w", errLost, err)
		default:
			e.log.Warn("the Lease is not renewed", "lease", e.namespace+"/"+e.name, "err", err)
		}
	}
}

// try takes the Lease if it is free, or renews it.
func (e *elector) try(ctx context.Context) error {
	start := time.Now() // others see the write later than that
	lease, err := e.leases.Get(ctx, e.name)
	if apierrors.IsNotFound(err) {
		lease = &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: e.namespace, Name: e.name}}
		e.claim(&lease.Spec, start)
		lease, err = e.leases.Create(ctx, lease)
		return e.claimed(lease, start, err)
	}
	if err != nil {
		return err
	}
	e.observe(&lease.Spec)
	if e.heldByAnother() {
		return errHeld
	}
	e.claim(&lease.Spec, start)
	lease, err = e.leases.Update(ctx, lease)
	return e.claimed(lease, start, err)
}

// observe notes the Lease as the API server has it.
func (e *elector) observe(spec *coordinationv1.LeaseSpec) {
	if equality.Semantic.DeepEqual(&e.seen, spec) {
		return
	}
	if holder := value(spec.HolderIdentity); holder != "" && holder != value(e.seen.HolderIdentity) {
		e.log.Info("leader", "identity", holder)
	}
	e.seen, e.since = *spec.DeepCopy(), time.Now()
}

// heldByAnother reports whether another's Lease has not ended.
func (e *elector) heldByAnother() bool {
	holder, lasts := value(e.seen.HolderIdentity), time.Duration(value(e.seen.LeaseDurationSeconds))*time.Second
	return holder != "" && holder != e.identity && time.Since(e.since) < lasts
}

// claim makes the Lease that of this process.
func (e *elector) claim(spec *coordinationv1.LeaseSpec, now time.Time) {
	at, seconds := metav1.NewMicroTime(now), int32(leaseDuration/time.Second)
	if value(spec.HolderIdentity) != e.identity {
		transitions := value(spec.LeaseTransitions)
		if spec.HolderIdentity != nil {
			transitions++
		}
		spec.HolderIdentity, spec.AcquireTime, spec.LeaseTransitions = &e.identity, &at, &transitions
	}
	spec.RenewTime, spec.LeaseDurationSeconds = &at, &seconds
}

// claimed takes the outcome of a write of the Lease.
func (e *elector) claimed(lease *coordinationv1.Lease, start time.Time, err error) error {
	if err != nil {
		return err
	}
	e.observe(&lease.Spec)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.renewed = start
	return nil
}

// release gives the Lease back, so that another may take it at once.
func (e *elector) release(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, renewDeadline)
	defer cancel()
	var err error
	for range 3 { // a conflict is another write of this process
		var lease *coordinationv1.Lease
		if lease, err = e.leases.Get(ctx, e.name); err != nil || value(lease.Spec.HolderIdentity) != e.identity {
			break
		}
		nobody, second, now := "", int32(1), metav1.NowMicro()
		lease.Spec.HolderIdentity, lease.Spec.LeaseDurationSeconds, lease.Spec.RenewTime = &nobody, &second, &now
		if _, err = e.leases.Update(ctx, lease); !apierrors.IsConflict(err) {
			break
		}
	}
	if err != nil {
		e.log.Warn("the Lease is not given back: another takes over when it ends", "lease", e.namespace+"/"+e.name, "err", err)
	}
}

// check is the error of a holder that has not renewed the Lease, and has not ended either.
func (e *elector) check() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if silent := time.Since(e.renewed); !e.renewed.IsZero() && silent > leaseDuration+renewDeadline {
		return fmt.Errorf("the Lease was renewed last %s ago", silent.Round(time.Second))
	}
	return nil
}

// value is what p points to, the zero value for nil.
func value[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}
