package route

import "sync/atomic"

// ringSize is the number of requests of a worker that may wait. A worker that finds the
// ring full asks again with the next packet.
const ringSize = 256

// ring takes a worker's requests to the watcher: single producer, single
// consumer.
type ring struct {
	head atomic.Uint32 // consumer's
	_    [60]byte
	tail atomic.Uint32 // producer's
	full atomic.Uint64 // producer's: requests that found no room
	_    [48]byte
	keys [ringSize]request
}

// request is a request of a worker.
type request struct {
	hopKey
	needed bool
}

func (r *ring) put(k request) bool {
	t := r.tail.Load()
	room := uint32(ringSize)
	if !k.needed {
		room /= 2 // endpoints and gateways are asked for all the same
	}
	if t-r.head.Load() >= room {
		r.full.Add(1)
		return false
	}
	r.keys[t%ringSize] = k
	r.tail.Store(t + 1)
	return true
}

func (r *ring) take() (request, bool) {
	h := r.head.Load()
	if h == r.tail.Load() {
		return request{}, false
	}
	k := r.keys[h%ringSize]
	r.head.Store(h + 1)
	return k, true
}

// requests are those of all workers.
type requests struct {
	rings   []ring
	wake    chan struct{} // a worker asked for something
	pending atomic.Uint32 // 1: wake has been sent since the rings were emptied
}

func (rs *requests) init(workers int) {
	rs.rings, rs.wake = make([]ring, workers), make(chan struct{}, 1)
}

func (rs *requests) put(worker int, r request) {
	if !rs.rings[worker].put(r) {
		return
	}
	if rs.pending.Load() == 0 && rs.pending.CompareAndSwap(0, 1) {
		select {
		case rs.wake <- struct{}{}:
		default:
		}
	}
}

// take calls f with each request.
func (rs *requests) take(f func(request)) {
	rs.pending.Store(0) // before the rings are read: a later request wakes again
	for i := range rs.rings {
		for {
			r, ok := rs.rings[i].take()
			if !ok {
				break
			}
			f(r)
		}
	}
}

// full is how many requests found no room.
func (rs *requests) full() (n uint64) {
	for i := range rs.rings {
		n += rs.rings[i].full.Load()
	}
	return n
}
