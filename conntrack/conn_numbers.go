package conntrack

import (
	"sync/atomic"

	"github.com/weirlb/weir/conntrack/flowstate"
	"github.com/weirlb/weir/conntrack/tcp"
)

func (c *Conn) numbers() (client, endpoint, extra uint32) {
	return atomic.LoadUint32(&c.clientNext), atomic.LoadUint32(&c.endpointNext), atomic.LoadUint32(&c.extra)
}

// claim keeps other workers from changing numbers and state of the connection in state word
// s, until setState moves the state on. A FIN without its number, or a noted number of the
// wrong segment, would come of two changes at the same time. It reports false when the state
// is not s any more.
func (c *Conn) claim(s *uint32) bool {
	if *s&flowstate.Changing == 0 && !atomic.CompareAndSwapUint32(&c.state, *s, *s|flowstate.Changing) {
		return false
	}
	*s |= flowstate.Changing
	return true
}

// mostLoads bounds the wait for another worker's change: longer than a change takes, which
// is some stores. A worker that was stopped in between, or whose process has ended, must not
// stop others.
const mostLoads = 256

// unchanging waits for the end of another worker's change and returns the state word.
func (c *Conn) unchanging() (s uint32) {
	for range mostLoads {
		if s = atomic.LoadUint32(&c.state); s&flowstate.Changing == 0 {
			break
		}
	}
	return s
}

// remember stores the numbers of n in a claimed connection, which were client, endpoint and
// extra. It reports false when another worker has changed them since: in Sample, or after
// mostLoads. The claim stays, and the next attempt goes on with it after mostLoads.
func (c *Conn) remember(client, endpoint, extra uint32, n *tcp.Numbers) bool {
	return replace(&c.clientNext, client, n.Client) &&
		replace(&c.endpointNext, endpoint, n.Endpoint) &&
		replace(&c.extra, extra, n.Extra)
}

func replace(p *uint32, was, n uint32) bool {
	return n == was || atomic.CompareAndSwapUint32(p, was, n)
}

// milestone is the number of bytes of a side after which a segment is sampled, besides the
// first of a tick: a busy connection sends more than a megabyte in each direction within a
// tick. With it up to 16 MB in each direction may be unacknowledged.
const milestone = 1 << 16

// Milestone reports whether a segment or packet must be passed to [Conn.Sample] besides the
// first of a direction in a tick. It has length bytes and sequence number seq.
func Milestone(seq, length uint32) bool { return seq&(milestone-1) < length }

// Sample notes the numbers of a segment with ACK of an established connection: forward says
// that it is the client's, end is the sequence number after its payload. The caller calls
// it for the first segment of a direction in a tick, and at each [Milestone]. Sample leaves out
// a segment whose numbers are far from those of the last sample, and returns false. Such a
// segment is not of this connection, or cannot be told from a foreign segment.
func (c *Conn) Sample(forward bool, seq, end, ack uint32) (near bool) {
	own, other := &c.clientNext, &c.endpointNext
	if !forward {
		own, other = other, own
	}
	o, a := atomic.LoadUint32(own), atomic.LoadUint32(other)
	if tcp.Span(seq-o)*tcp.Span(ack-a) > tcp.Nearby {
		return false
	}
	if int32(end-o) > 0 {
		storeRelaxed(own, end)
	}
	if int32(ack-a) > 0 {
		// Not in place of the number of a FIN that another worker has seen since.
		atomic.CompareAndSwapUint32(other, a, ack)
	}
	return true
}

// catchUp notes numbers that [Entry.Note] has left in an entry. The Conn is behind them by less than
// a block. Numbers that are further ahead are old, or foreign: packets that take another path, in
// the kernel for example, are not noted in the entry. After 2 GB of these its numbers seem to be
// ahead. Any goroutine may call catchUp: it replaces no number that is stored meanwhile.
func (c *Conn) catchUp(forward bool, end, ack uint32) {
	own, other := &c.clientNext, &c.endpointNext
	if !forward {
		own, other = other, own
	}
	o, a := atomic.LoadUint32(own), atomic.LoadUint32(other)
	ahead, acked := int32(end-o), int32(ack-a)
	if max(ahead, acked) >= milestone || tcp.Span(end-o)*tcp.Span(ack-a) > tcp.Nearby {
		return
	}
	if ahead > 0 {
		atomic.CompareAndSwapUint32(own, o, end)
	}
	if acked > 0 {
		atomic.CompareAndSwapUint32(other, a, ack)
	}
}
