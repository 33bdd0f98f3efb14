package chaos

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

// failure is a connection that failed.
type failure struct {
	what         string // established, new
	kind         string // see workload.Kind
	service      *service
	six          bool
	begun, ended time.Time
	err          error
	cause        *fault // nil: none; see judged
	judged       bool   // cause is known
}

func (f *failure) String() string {
	return fmt.Sprintf("%s connection to %s, %s, from %s for %v: %s: %v", f.what, f.service.name, family(f.six),
		f.begun.Format(time.TimeOnly), f.ended.Sub(f.begun).Round(time.Millisecond), f.kind, f.err)
}

func family(six bool) string {
	if six {
		return "IPv6"
	}
	return "IPv4"
}

// Report is the result of a run.
type Report struct {
	Seed     uint64
	Duration time.Duration

	hook, source string
	faults       *faultLog
	connections  int
	exchanges    int64
	longest      time.Duration // exchange of an established connection
	fresh        int
	longestFresh time.Duration
	mostWaiting  int // connections at the same time
	flows        uint64
	repeated     uint64 // packets that the kernel forwarded for the last process
	drops        map[string]uint64
	life         []sample // of the last process

	mu            sync.Mutex
	failures      []failure
	leaked        []string // violated invariants, and remains
	verifications int
}

func (r *Report) fail(f failure) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failures = append(r.failures, f)
}

func (r *Report) leak(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.leaked = append(r.leaked, fmt.Sprintf(format, args...))
}

func (r *Report) verified(v *verification) {
	for _, f := range v.Faults {
		r.leak("flow table: %s", f)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.verifications++
}

// waited notes how many connections wait at a moment.
func (r *Report) waited(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mostWaiting = max(r.mostWaiting, n)
}

// explain looks for the fault behind each failure. A failure is looked at once: the time that is
// allowed follows the machine, and the report must agree with itself.
func (r *Report) explain() {
	wait := mostWait()
	for i := range r.failures {
		if f := &r.failures[i]; !f.judged {
			f.cause, f.judged = r.faults.explanation(f, wait), true
		}
	}
}

// Explained are the failures that a fault explains, with its name.
func (r *Report) Explained() []string {
	r.explain()
	var out []string
	for i := range r.failures {
		if f := &r.failures[i]; f.cause != nil {
			out = append(out, f.cause.name+": "+f.String())
		}
	}
	return out
}

// Unexplained are the failures that no fault explains.
func (r *Report) Unexplained() []string {
	r.explain()
	var out []string
	for i := range r.failures {
		if f := &r.failures[i]; f.cause == nil {
			out = append(out, f.String())
		}
	}
	return out
}

// growthAllowed is growth of memory that is no leak, in bytes in the life of the process. With
// GOGC=50 the heap moves by half of what lives in it, 20 MB or more, and the first minutes
// take it to its peak. A minute's life therefore shows only a large leak; half an hour of
// make soak shows one of 0.5 MB per minute.
const growthAllowed = 16 << 20

// growth returns why the resources of the last process are not flat, nil if they are.
func (r *Report) growth() (out []string) {
	if len(r.life) == 0 {
		return []string{"the process was never measured"}
	}
	first, last := r.life[0], r.life[len(r.life)-1]
	minutes := (last.at.Sub(first.at) - warmUp).Minutes()
	if s, ok := slope(r.life); ok && s*minutes > growthAllowed {
		out = append(out, fmt.Sprintf("memory grows by %.1f MB per minute", s/(1<<20)))
	}
	if n := last.files - first.files; n > mostGrowth {
		out = append(out, fmt.Sprintf("%d more files are open than %v before", n, last.at.Sub(first.at).Round(time.Second)))
	}
	return out
}

// Err is what Weir did wrong: failures without an explanation, violated invariants, growth,
// and remains.
func (r *Report) Err() error {
	var errs []error
	for _, list := range [][]string{r.Unexplained(), r.leaked, r.growth()} {
		for _, line := range list[:min(len(list), 20)] {
			errs = append(errs, errors.New(line))
		}
		if n := len(list) - 20; n > 0 {
			errs = append(errs, fmt.Errorf("and %d more", n))
		}
	}
	return errors.Join(errs...)
}

// writeCauses writes how many failures each fault explains.
func (r *Report) writeCauses(b *strings.Builder) {
	causes := map[string]int{}
	for i := range r.failures {
		if f := &r.failures[i]; f.cause != nil {
			causes[fmt.Sprintf("%s: %s connection, %s", f.cause.name, f.what, f.kind)]++
		}
	}
	for _, cause := range slices.Sorted(maps.Keys(causes)) {
		fmt.Fprintf(b, "  %s: %d\n", cause, causes[cause])
	}
}

// String is the report for people.
func (r *Report) String() string {
	var b strings.Builder
	counts := r.faults.counts()
	fmt.Fprintf(&b, "seed %d, %v, kernel forwards at hook: %s, source: %s\nfaults:", r.Seed, r.Duration, cmp.Or(r.hook, Arrangements[0]), r.source)
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		fmt.Fprintf(&b, " %s %d;", name, counts[name])
	}
	unexplained := len(r.Unexplained())
	fmt.Fprintf(&b, "\nestablished: %d connections, %d exchanges, the longest %v, at most %d waited for more than %v\n",
		r.connections, r.exchanges, r.longest.Round(time.Millisecond), r.mostWaiting, waitNoted)
	fmt.Fprintf(&b, "new: %d connections, the longest %v\n", r.fresh, r.longestFresh.Round(time.Millisecond))
	fmt.Fprintf(&b, "failures: %d explained, %d unexplained\n", len(r.failures)-unexplained, unexplained)
	r.writeCauses(&b)
	fmt.Fprintf(&b, "verifications of the flow table: %d; violated invariants and remains: %d\n", r.verifications, len(r.leaked))
	if len(r.life) > 0 {
		first, last := r.life[0], r.life[len(r.life)-1]
		fmt.Fprintf(&b, "last process, %v: memory %.1f MB to %.1f MB", last.at.Sub(first.at).Round(time.Second),
			float64(first.bytes)/(1<<20), float64(last.bytes)/(1<<20))
		if s, ok := slope(r.life); ok {
			fmt.Fprintf(&b, ", slope %+.2f MB per minute", s/(1<<20))
		}
		fmt.Fprintf(&b, "; files %d to %d\n", first.files, last.files)
	}
	fmt.Fprintf(&b, "flows in the end: %d; packets that the kernel forwarded for the last process: %d\n", r.flows, r.repeated)
	return b.String()
}
