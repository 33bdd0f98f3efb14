package pipeline

import (
	"math/bits"
	"time"
)

// latencies counts times by size, with an error of at most 1/64.
type latencies struct {
	count [64 * (latencyParts + 1)]uint32
	n     uint64
}

// latencyParts is the number of classes between a power of two and the next.
const latencyParts = 64

func (h *latencies) note(d time.Duration) {
	h.count[classOf(uint64(max(d, 0)))]++
	h.n++
}

// add adds the times of another.
func (h *latencies) add(from *latencies) {
	for class, n := range from.count {
		h.count[class] += n
	}
	h.n += from.n
}

// classOf returns the class of a time: times below latencyParts nanoseconds have one each.
func classOf(ns uint64) int {
	if ns < latencyParts {
		return int(ns)
	}
	shift := bits.Len64(ns) - 7 // leaves 64 to 127
	return shift*latencyParts + int(ns>>shift)
}

// leastOf returns the shortest time of a class.
func leastOf(class int) uint64 {
	if class < 2*latencyParts {
		return uint64(class)
	}
	shift := class/latencyParts - 1
	return uint64(class-shift*latencyParts) << shift
}

// quantile returns the time, in microseconds, that a share of all times does not exceed.
func (h *latencies) quantile(share float64) float64 {
	want, seen := uint64(share*float64(h.n)), uint64(0)
	for class, n := range h.count {
		if seen += uint64(n); n > 0 && seen >= want {
			return float64(leastOf(class)) / 1e3
		}
	}
	return 0
}
