package workload

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Record collects the outcome of requests; it may be shared by clients.
type Record struct {
	mu       sync.Mutex
	pending  int
	requests int
	servers  map[string]int
	failures map[string]int
	first    map[string]error // the first error of each kind
	latency  []time.Duration
	refusals []time.Duration
}

// begin enters a pending request; end or cancel must follow.
func (r *Record) begin() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pending++
}

// cancel takes a request back that the client itself cut short.
func (r *Record) cancel() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pending--
}

// end enters the outcome of a request: the server and the duration, or the error.
func (r *Record) end(server string, took time.Duration, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.servers == nil {
		r.servers, r.failures, r.first = make(map[string]int), make(map[string]int), make(map[string]error)
	}
	r.pending--
	r.requests++
	if err == nil {
		r.servers[server]++
		r.latency = append(r.latency, took)
		return
	}
	kind := Kind(err)
	if kind == KindRefused {
		r.refusals = append(r.refusals, took)
	}
	r.failures[kind]++
	if r.first[kind] == nil {
		r.first[kind] = err
	}
}

// Add enters a request that was made elsewhere.
func (r *Record) Add(server string, took time.Duration, err error) {
	r.begin()
	r.end(server, took, err)
}

// Pending is the number of requests that have begun and not ended.
func (r *Record) Pending() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.pending
}

// Requests is the number of requests that have ended.
func (r *Record) Requests() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.requests
}

// Servers is the number of requests that each server answered.
func (r *Record) Servers() map[string]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.servers)
}

// Failures is the number of failed requests by kind; see Kind.
func (r *Record) Failures() map[string]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.failures)
}

// Failed is the number of failed requests.
func (r *Record) Failed() int {
	total := 0
	for _, n := range r.Failures() {
		total += n
	}
	return total
}

// Err describes the failures, or is nil when there were none.
func (r *Record) Err() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.failures) == 0 {
		return nil
	}
	var kinds []string
	for _, k := range slices.Sorted(maps.Keys(r.failures)) {
		kinds = append(kinds, fmt.Sprintf("%d %s (first: %v)", r.failures[k], k, r.first[k]))
	}
	return fmt.Errorf("of %d requests failed %s", r.requests, strings.Join(kinds, "; "))
}

// Percentile is the latency below which p percent of the answered requests
// stayed (nearest rank), 0 without any.
func (r *Record) Percentile(p float64) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return percentile(r.latency, p)
}

// RefusalPercentile is the same for how long refusals took to arrive.
func (r *Record) RefusalPercentile(p float64) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return percentile(r.refusals, p)
}

func percentile(d []time.Duration, p float64) time.Duration {
	if len(d) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(d))
	return sorted[min(len(sorted)-1, int(float64(len(sorted))*p/100))]
}

// Merge adds the records of other.
func (r *Record) Merge(other *Record) {
	other.mu.Lock()
	defer other.mu.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.servers == nil {
		r.servers, r.failures, r.first = make(map[string]int), make(map[string]int), make(map[string]error)
	}
	r.requests += other.requests
	for k, v := range other.servers {
		r.servers[k] += v
	}
	for k, v := range other.failures {
		r.failures[k] += v
		if r.first[k] == nil {
			r.first[k] = other.first[k]
		}
	}
	r.latency = append(r.latency, other.latency...)
	r.refusals = append(r.refusals, other.refusals...)
}

// Kinds of failure.
const (
	KindRefused = "refused" // RST in answer to a SYN, or ICMP port unreachable
	KindReset   = "reset"   // RST on an established connection
	KindTimeout = "timeout"
	KindOther   = "other"
)

// Kind classifies a client's error.
func Kind(err error) string {
	var timeout net.Error
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return KindRefused
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return KindReset
	case errors.Is(err, os.ErrDeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return KindTimeout
	default:
		return KindOther
	}
}
