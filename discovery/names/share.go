package names

import (
	"context"
	"time"

	"golang.org/x/time/rate"
)

// limiter bounds queries. One at a time waits at the rate.Limiter: with many, one that ends does not give its
// token back, and whoever adds and removes names takes those of all.
type limiter struct {
	rate *rate.Limiter
	turn chan struct{} // has room for who waits
}

func newLimiter(perSecond rate.Limit, burst int) limiter {
	return limiter{rate.NewLimiter(perSecond, burst), make(chan struct{}, 1)}
}

// wait returns when a query may go, or with an error when ctx ends.
func (l limiter) wait(ctx context.Context) error {
	select {
	case l.turn <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-l.turn }()
	return l.rate.Wait(ctx)
}

// fullAfter is how long it takes until the burst is free again, if nobody asks: 0 or less if it is.
func (l limiter) fullAfter() time.Duration {
	missing := float64(l.rate.Burst()) - l.rate.Tokens()
	return time.Duration(missing / float64(l.rate.Limit()) * float64(time.Second))
}

// share is the part of a namespace in the bounds.
type share struct {
	names  int // that are resolved
	limit  limiter
	places chan struct{}
	ends   bool // retire will look at it
}

// retire ends a share without names as soon as its limit is full: a new share has a full one. Precondition: r.mu
// is held.
func (r *Resolver) retire(namespace string, s *share) {
	s.ends = false
	if s.names > 0 {
		return
	}
	after := s.limit.fullAfter()
	if after <= 0 {
		delete(r.shares, namespace)
		return
	}
	s.ends = true
	time.AfterFunc(after+time.Millisecond, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.retire(namespace, s)
	})
}
