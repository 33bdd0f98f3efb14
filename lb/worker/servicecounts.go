package worker

import (
	"slices"
	"sync/atomic"

	"github.com/valyala/fastrand"

	"github.com/weirlb/weir/conntrack"
)

// Words of a Service's counters.
const (
	serviceNewFlows = 0
	servicePackets  = 1 // of clients, of endpoints
	serviceBytes    = 3
	serviceAnswered = 5  // number of handshakes measured, and the sum of their times
	serviceResent   = 7  // SYN, SYN-ACK, FIN
	serviceTimes    = 10 // by bucket
	serviceDrops    = serviceTimes + handshakeBuckets
	serviceWords    = serviceDrops + int(dropReasons)
)

// serviceChunk is the number of Services whose counters come into being together, so that
// a node with few Services does not pay for many.
const serviceChunk = 32

// mostServices is the largest number of a Service that is counted.
const mostServices = 1 << 17

type (
	serviceCounters [serviceWords]uint64
	countChunk      [serviceChunk]serviceCounters
	countChunks     []atomic.Pointer[countChunk]
)

// ServiceCounts are the counters of all workers per Service, by Service number. A worker
// writes its own with plain stores, and none for a packet of an established flow but for a
// sample: see trafficSampler. Packets that are dropped before their Service is known are
// counted for the node alone. Packets that the kernel forwards by the flow table are not
// counted here.
type ServiceCounts struct {
	workers    []countChunks
	handshakes handshakeTimes
}

// NewServiceCounts makes the counters of a number of workers, for no Service yet.
func NewServiceCounts(workers int) *ServiceCounts {
	s := &ServiceCounts{workers: make([]countChunks, workers)}
	for i := range s.workers {
		s.workers[i] = make(countChunks, mostServices/serviceChunk)
	}
	return s
}

// Grow makes room for Services numbered up to n. The owner calls it before it publishes a
// snapshot that names them; a Service without room is not counted.
func (s *ServiceCounts) Grow(n uint32) {
	last := min(n, mostServices-1) / serviceChunk
	for _, chunks := range s.workers {
		for i := int(last); i >= 0 && chunks[i].Load() == nil; i-- {
			chunks[i].Store(new(countChunk))
		}
	}
}

// ServiceCounters are what was counted for a Service number, over all workers.
type ServiceCounters struct {
	NewFlows uint64
	// Packets and Bytes, from Ethernet header on, are those of clients and of endpoints:
	// estimates from a sample, see trafficSampler.
	Packets, Bytes [2]uint64
	// Answered is how many times from SYN to SYN-ACK were measured, AnswerMicros their sum,
	// and Answers how many are in each bucket: see HandshakeBounds.
	Answered, AnswerMicros uint64
	Answers                [handshakeBuckets]uint64
	// ResentSYNs, ResentSYNACKs and ResentFINs are segments that came again, with the same
	// sequence number. Data is not among them: its sequence numbers are not followed.
	ResentSYNs, ResentSYNACKs, ResentFINs uint64

	drops [dropReasons]uint64
}

// Drops are the dropped packets by reason: only those that occurred.
func (c *ServiceCounters) Drops() map[string]uint64 {
	out := map[string]uint64{}
	for reason, n := range c.drops {
		if n > 0 {
			out[Drop(reason).String()] = n
		}
	}
	return out
}

// Read returns the counters of Service n. Workers go on meanwhile.
func (s *ServiceCounts) Read(n uint32) ServiceCounters {
	var sum serviceCounters
	for _, chunks := range s.workers {
		c := chunks.of(n)
		if c == nil {
			continue
		}
		for i := range c {
			sum[i] += atomic.LoadUint64(&c[i])
		}
	}
	out := ServiceCounters{
		NewFlows: sum[serviceNewFlows],
		Packets:  [2]uint64(sum[servicePackets:]), Bytes: [2]uint64(sum[serviceBytes:]),
		Answered: sum[serviceAnswered], AnswerMicros: sum[serviceAnswered+1],
		ResentSYNs: sum[serviceResent], ResentSYNACKs: sum[serviceResent+1], ResentFINs: sum[serviceResent+2],
	}
	copy(out.Answers[:], sum[serviceTimes:])
	copy(out.drops[:], sum[serviceDrops:])
	return out
}

// Since returns the counters less those of an earlier time.
func (c ServiceCounters) Since(before *ServiceCounters) ServiceCounters {
	c.NewFlows -= before.NewFlows
	c.Answered -= before.Answered
	c.AnswerMicros -= before.AnswerMicros
	c.ResentSYNs -= before.ResentSYNs
	c.ResentSYNACKs -= before.ResentSYNACKs
	c.ResentFINs -= before.ResentFINs
	subtract(c.Packets[:], before.Packets[:])
	subtract(c.Bytes[:], before.Bytes[:])
	subtract(c.Answers[:], before.Answers[:])
	subtract(c.drops[:], before.drops[:])
	return c
}

func subtract(from, what []uint64) {
	for i := range from {
		from[i] -= what[i]
	}
}

// of returns the counters of Service n, nil if there are none.
func (c countChunks) of(n uint32) *serviceCounters {
	i := n / serviceChunk
	if uint64(i) >= uint64(len(c)) {
		return nil
	}
	chunk := c[i].Load()
	if chunk == nil {
		return nil
	}
	return &chunk[n%serviceChunk]
}

// add adds to a word of Service n.
func (c countChunks) add(n uint32, word int, delta uint64) {
	if s := c.of(n); s != nil {
		storeRelaxed(&s[word], s[word]+delta)
	}
}

// sampleEvery is the average number of packets of large batches of which a single packet is
// counted for its Service. It has the weight of all since the last: with 1 million packets
// per second the error of a Service with a tenth of them is 3 % over ten seconds. Of a
// small batch, which costs far more per packet by itself, one packet is counted for the
// batch.
const (
	sampleEvery = 512
	smallBatch  = 8
)

// trafficSampler counts down to the next packet of large batches that is counted.
type trafficSampler struct {
	conns    *conntrack.Table
	services countChunks
	rng      *fastrand.RNG
	left     int32  // packets before that one and itself
	gap      uint32 // left at the beginning: the packet's weight
}

// count counts a packet of batch b for the Service of its flow. It stands for all that
// came since the last (as in sFlow, RFC 3176). Exact counting would touch another cache line
// for every packet. The distance to the next packet is random: ports, and with them the
// directions of a flow, take turns in a fixed order. Small batches count for themselves alone,
// or they would have the weight of the large ones between them.
func (s *trafficSampler) count(b *batch) {
	n, at, weight := uint32(b.n), uint32(0), uint32(0)
	switch {
	case n == 0:
		return
	case n <= smallBatch:
		at, weight = s.rng.Uint32n(n), n
	default:
		if s.left -= int32(n); s.left > 0 {
			return
		}
		at, weight = uint32(int32(n)+s.left-1), s.gap
		// At least a batch: a batch has one packet that is counted at most.
		s.gap = batchSize + s.rng.Uint32n(2*(sampleEvery-batchSize)+1)
		s.left += int32(s.gap)
	}
	i := at & (batchSize - 1)
	r := b.ref[i]
	if r == 0 {
		return // without a flow
	}
	service := atomic.LoadUint32(&s.conns.Changing(r).ServiceID)
	c := s.services.of(service)
	if c == nil {
		return
	}
	dir := 0
	if !r.Forward() {
		dir = 1
	}
	storeRelaxed(&c[servicePackets+dir], c[servicePackets+dir]+uint64(weight))
	storeRelaxed(&c[serviceBytes+dir], c[serviceBytes+dir]+uint64(weight)*uint64(b.first[i].Len))
}

// HandshakeBounds are the upper bounds of the buckets of times, in microseconds; the last
// bucket has no bound.
func HandshakeBounds() []uint32 { return slices.Clone(handshakeBounds[:]) }
