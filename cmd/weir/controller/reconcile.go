package controller

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weirlb/weir/discovery"
	"github.com/weirlb/weir/discovery/addresspool"
)

// condition is the type of the condition in a Service's status.
const condition = "weir.dev/AddressAllocated"

// termsCondition is the type of another: the policy that the addresses were given for, as its
// reason, which nodes read, and all terms of addresspool.Service.
const termsCondition = discovery.ConditionTerms

// reasonForeign is the reason of the Event on a Service that is left alone.
const reasonForeign = "ForeignStatus"

// decision is the status that a Service should have. A nil decision leaves it alone.
type decision struct {
	addresses []netip.Addr
	ok        bool // for the condition
	reason    string
	text      string
	terms     string // of the addresses
	clear     bool   // the Service is no load balancer any more
}

// decide asks the allocator for the status that a Service should have. The Service is nil if it is gone.
func (c *controller) decide(name string) (*corev1.Service, *decision) {
	c.mu.Lock()
	defer c.mu.Unlock()
	svc := named[corev1.Service](c.services, name)
	if svc == nil {
		c.release(name)
		return nil, nil
	}
	s, wrong := c.describe(svc)
	switch {
	case svc.Spec.Type != corev1.ServiceTypeLoadBalancer:
		c.release(name)
		// Newer API servers clear the addresses themselves. The condition says whose they are.
		if meta.FindStatusCondition(svc.Status.Conditions, condition) != nil {
			return svc, &decision{clear: true}
		}
		return svc, nil
	case s.Foreign:
		c.leaveAlone(svc, s)
		return svc, nil
	case svc.DeletionTimestamp != nil && len(s.Status) == 0:
		return svc, nil // it gets no address any more
	case wrong != nil:
		c.outcomes[name] = addresspool.ReasonRequest
		d := &decision{reason: addresspool.ReasonRequest, text: wrong.Error()}
		if s.Addresses, s.PoolName = nil, ""; len(s.Status) > 0 { // it keeps what it has
			d.addresses = c.allocator.Reconcile(s, time.Now()).Addresses
			d.terms = s.Terms(d.addresses)
		}
		return svc, d
	}
	delete(c.foreign, name)
	now := time.Now()
	out := c.allocator.Reconcile(s, now)
	if !out.Retry.IsZero() {
		c.queue.AddAfter(name, time.Until(out.Retry)+10*time.Millisecond)
	}
	d := &decision{addresses: out.Addresses, ok: len(out.Addresses) > 0, reason: out.Reason, text: out.Text, terms: s.Terms(out.Addresses)}
	switch out.Reason {
	case addresspool.ReasonKept:
		d.reason = addresspool.ReasonAllocated
	case addresspool.ReasonAllocated, addresspool.ReasonOutsideOfPool, addresspool.ReasonClaimed:
	default:
		d.ok = false
	}
	if len(out.Lost) > 0 {
		d.text = strings.TrimSpace(fmt.Sprintf("%s stays with another Service, which is older or has it already. %s", list(out.Lost), d.text))
		c.log.Warn("an address is in the status of two Services", "service", name, "addresses", list(out.Lost), "now", list(out.Addresses))
		if d.ok {
			d.reason = addresspool.ReasonConflict
		}
	}
	if !slices.Equal(out.Addresses, s.Status) && len(s.Status) > 0 {
		c.freed()
	}
	c.outcomes[name] = d.reason
	return svc, d
}

// leaveAlone notes the addresses of a Service that another controller serves. A Service of this
// class is told once why it gets none.
func (c *controller) leaveAlone(svc *corev1.Service, s *addresspool.Service) {
	delete(c.outcomes, s.Name)
	c.enqueue(c.allocator.Claimed(s.Name))
	c.allocator.Adopt(s, time.Now())
	c.enqueue(c.allocator.Claimed(s.Name))
	c.freed() // an address may have left that status
	if !c.ours(svc) || c.foreign[s.Name] {
		return
	}
	c.foreign[s.Name] = true
	const text = "status.loadBalancer has a host name: another controller has written it, and the Service is left alone"
	c.log.Warn(text, "service", s.Name)
	c.recorder.event(svc, corev1.EventTypeWarning, reasonForeign, text)
}

func (c *controller) enqueue(names []string) {
	for _, name := range names {
		c.queue.Add(name)
	}
}

// release ends a Service's claim. Those that wait for an address try again.
func (c *controller) release(name string) {
	delete(c.outcomes, name)
	delete(c.rewrites, name)
	delete(c.foreign, name)
	c.enqueue(c.allocator.Claimed(name))
	if len(c.allocator.Release(name, time.Now())) > 0 {
		c.freed()
	}
}

// freed lets all Services that wait try again, and has the addresses that rest recorded.
func (c *controller) freed() {
	c.queue.AddAfter(restsKey, restsInterval)
	var wait []*corev1.Service
	for name, reason := range c.outcomes {
		if reason == addresspool.ReasonAllocated {
			continue
		}
		if svc := named[corev1.Service](c.services, name); svc != nil {
			wait = append(wait, svc)
		}
	}
	slices.SortFunc(wait, byAge)
	for _, svc := range wait {
		c.queue.Add(key(svc))
	}
}

func list(addrs []netip.Addr) string {
	var out []string
	for _, a := range addrs {
		out = append(out, a.String())
	}
	return strings.Join(out, ", ")
}

// write makes the decision the Service's status, in a single step. The API server refuses it if the
// Service has changed since; the next try decides anew.
func (c *controller) write(ctx context.Context, svc *corev1.Service, d *decision) error {
	next := svc.DeepCopy()
	has, _ := ingress(svc)
	moves := d.clear || !slices.Equal(has, d.addresses)
	if moves {
		if wait := c.rewriteIn(key(svc), d.addresses); wait > 0 {
			c.queue.AddAfter(key(svc), wait)
			return nil
		}
		next.Status.LoadBalancer = corev1.LoadBalancerStatus{}
		mode := corev1.LoadBalancerIPModeVIP
		for _, a := range d.addresses {
			next.Status.LoadBalancer.Ingress = append(next.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: a.String(), IPMode: &mode})
		}
	}
	if changed := d.setConditions(next); !changed && !moves {
		return nil
	}
	if _, err := c.client.Services(svc.Namespace).UpdateStatus(ctx, next); err != nil {
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	}
	c.written.Add(1)
	if moves && !d.clear {
		c.noteRewrite(key(svc), d.addresses)
	}
	c.say(svc, d)
	return nil
}

// setConditions reports whether that changes something.
func (d *decision) setConditions(svc *corev1.Service) (changed bool) {
	list := &svc.Status.Conditions
	if d.terms == "" {
		changed = meta.RemoveStatusCondition(list, termsCondition)
	} else {
		changed = meta.SetStatusCondition(list, metav1.Condition{
			Type: termsCondition, Status: metav1.ConditionTrue, Reason: policyOf(svc), Message: d.terms, ObservedGeneration: svc.Generation,
		})
	}
	if d.clear {
		meta.RemoveStatusCondition(list, condition)
		return true
	}
	status := metav1.ConditionFalse
	if d.ok {
		status = metav1.ConditionTrue
	}
	return meta.SetStatusCondition(list, metav1.Condition{
		Type: condition, Status: status, Reason: d.reason, Message: d.text, ObservedGeneration: svc.Generation,
	}) || changed
}

// say records an Event and a line of the log for a new decision. The condition in the status keeps
// a restart from saying it again.
func (c *controller) say(svc *corev1.Service, d *decision) {
	switch {
	case d.clear:
		c.log.Info("address released", "service", key(svc))
	case d.ok && d.reason == addresspool.ReasonAllocated:
		if has, _ := ingress(svc); slices.Equal(has, d.addresses) {
			return
		}
		c.log.Info("address allocated", "service", key(svc), "addresses", list(d.addresses))
		c.recorder.event(svc, corev1.EventTypeNormal, d.reason, "allocated "+list(d.addresses))
	default:
		c.log.Warn("address request", "service", key(svc), "reason", d.reason, "text", d.text)
		c.recorder.event(svc, corev1.EventTypeWarning, d.reason, d.text)
	}
}
