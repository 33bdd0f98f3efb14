package gateways

import (
	"errors"
	"maps"
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"
)

const (
	// The time until a write that failed is tried again, for each object.
	firstRetry = 200 * time.Millisecond
	lastRetry  = time.Minute
)

// retries are the writes that failed. An object that fails again and again delays no other, and changes of others
// do not have it tried sooner.
type retries struct {
	mu    sync.Mutex
	limit workqueue.TypedRateLimiter[string]
	until map[string]time.Time // no try before
	asked map[string]bool      // in this round
	anew  map[string]time.Time // deleted to be made anew
	class map[string]bool      // deleted for its class
	told  map[string]bool      // that another controller has made them
}

func newRetries() *retries {
	return &retries{
		limit: workqueue.NewTypedItemExponentialFailureRateLimiter[string](firstRetry, lastRetry),
		until: map[string]time.Time{}, asked: map[string]bool{}, anew: map[string]time.Time{}, class: map[string]bool{}, told: map[string]bool{},
	}
}

// due reports whether an object may be written.
func (r *retries) due(object string, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked[object] = true
	return !now.Before(r.until[object])
}

// note notes the end of a write.
func (r *retries) note(object string, failed bool, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if failed {
		r.until[object] = now.Add(r.limit.When(object))
		return
	}
	r.limit.Forget(object)
	delete(r.until, object)
	delete(r.told, object)
}

// tell reports whether it is to be told of an object that another controller has made it: once.
func (r *retries) tell(object string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	told := r.told[object]
	r.told[object] = true
	return !told
}

var errAnew = errors.New("made anew a short time ago, and changed again: does another controller serve Gateways?")

// makeAnew deletes an object, which comes back, unless that was lately: two controllers that disagree about an object
// would delete it without end.
func (r *retries) makeAnew(object string, now time.Time, remove func() error) error {
	r.mu.Lock()
	maps.DeleteFunc(r.anew, func(_ string, at time.Time) bool { return now.Sub(at) >= lastRetry })
	_, lately := r.anew[object]
	r.mu.Unlock()
	if lately {
		return errAnew
	}
	err := remove()
	if err == nil {
		r.mu.Lock()
		r.anew[object] = now
		r.mu.Unlock()
	}
	return err
}

var errClass = errors.New("another controller, with another --class, has made it: it is left as it is; delete it if that controller is gone")

// makeClass is makeAnew of an object that has another load balancer class. One that was made anew for it, and
// has another class again, is that of a controller that does the same: it is left alone while it is so.
func (r *retries) makeClass(object string, now time.Time, remove func() error) error {
	r.mu.Lock()
	left := r.class[object]
	r.mu.Unlock()
	if left {
		return errClass
	}
	err := r.makeAnew(object, now, remove)
	if err == nil {
		r.mu.Lock()
		r.class[object] = true
		r.mu.Unlock()
	}
	return err
}

// next ends a round, and returns how long to wait for the next. Without an object to wait for, more is false.
func (r *retries) next(now time.Time) (wait time.Duration, more bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for object, until := range r.until {
		if !r.asked[object] { // needs no write any more
			r.limit.Forget(object)
			delete(r.until, object)
			continue
		}
		if d := max(0, until.Sub(now)); !more || d < wait {
			wait, more = d, true
		}
	}
	for _, objects := range []map[string]bool{r.class, r.told} {
		maps.DeleteFunc(objects, func(object string, _ bool) bool { return !r.asked[object] })
	}
	clear(r.asked)
	return wait, more
}
