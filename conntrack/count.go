package conntrack

import (
	"sync/atomic"

	"github.com/weirlb/weir/conntrack/flowstate"
)

// flowCounts counts connections per number of the caller's: those that are open (see
// countsAsOpen) in the upper half of a word. The lower half has all of them where the
// number is an endpoint's, and the half-open ones where it is a Service's. So a connection
// costs one addition when it begins. They are on the Go heap: read after Close too. Numbers
// beyond the last are not counted.
type flowCounts []atomic.Uint64

// counts are those of endpoints, of Services, and of the handshakes per Service that failed.
type counts struct{ endpoints, services, failed flowCounts }

// The amounts that a connection adds.
const (
	countFlow     = 1
	countHalfOpen = 1
	countOpen     = 1 << 32
)

func (c flowCounts) add(n uint32, delta uint64) {
	if uint64(n) < uint64(len(c)) {
		c[n].Add(delta)
	}
}

func (c flowCounts) load(n uint32) (lower, open uint32) {
	if uint64(n) >= uint64(len(c)) {
		return 0, 0
	}
	v := c[n].Load()
	// An end may be counted before the beginning that another worker is at.
	lower = uint32(max(0, int32(v)))
	return lower, uint32(max(0, int32((v-uint64(int64(int32(v))))>>32)))
}

// move gives a connection's word another number, unless the connection is deleted.
func (c flowCounts) move(word *uint32, n uint32, counts uint64) {
	for {
		old := atomic.LoadUint32(word)
		if old == n || old == freedID {
			return
		}
		c.add(n, counts)
		if atomic.CompareAndSwapUint32(word, old, n) {
			c.add(old, -counts)
			return
		}
		c.add(n, -counts)
	}
}

// endpointCounts is the weight of a connection in state word s in the counts of its
// endpoint, serviceCounts in those of its Service.
func endpointCounts(s uint32) uint64 {
	if !flowstate.CountsAsOpen(s) {
		return countFlow
	}
	return countFlow + countOpen
}

func serviceCounts(s uint32) uint64 {
	switch {
	case flowstate.CountsAsOpen(s):
		return countOpen
	case flowstate.CountsAsHalfOpen(s):
		return countHalfOpen
	}
	return 0
}

// EndpointFlows returns how many connections name endpoint number n.
func (cn *counts) EndpointFlows(n uint32) uint32 {
	flows, _ := cn.endpoints.load(n)
	return flows
}

// EndpointOpen returns how many of them are open: both sides have been heard, and it
// was neither reset nor closed by both.
func (cn *counts) EndpointOpen(n uint32) uint32 {
	_, open := cn.endpoints.load(n)
	return open
}

// ServiceHalfOpen returns the number of connections of Service n in which only the client
// has sent packets.
func (cn *counts) ServiceHalfOpen(n uint32) uint32 {
	half, _ := cn.services.load(n)
	return half
}

// ServiceFailed returns how many TCP and SCTP connections of number n have ended before
// the handshake was complete, since Open.
func (cn *counts) ServiceFailed(n uint32) uint64 {
	if uint64(n) >= uint64(len(cn.failed)) {
		return 0
	}
	return cn.failed[n].Load()
}

// ServiceOpen returns how many connections of Service n are open.
func (cn *counts) ServiceOpen(n uint32) uint32 {
	_, open := cn.services.load(n)
	return open
}
