package event

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// Bounds.
const (
	// Size is how many events are kept.
	Size = 1000
	// repeatWithin is the time in which an equal event is a repetition.
	repeatWithin = 10 * time.Minute
	// maxText is the length of the texts of an event, in bytes.
	maxText = 512
	// Of a kind a burst of events is kept, and then so many per second. The others are an
	// event together. Thus a rollout leaves room for events of other kinds.
	kindBurst     = 100
	kindPerSecond = 2
	// logAgain is the time after which a repetition is logged again.
	logAgain = time.Minute
)

// New is an event to add.
type New struct {
	Kind     Kind
	Severity Severity // "": Note
	Service  string   // namespace/name
	Object   string
	// Identity tells events of the same kind and subject apart that are no repetitions of
	// each other, such as those of two endpoints.
	Identity string
	Text     string
	Times    uint64 // how often it occurred; 0: once
	// Logged is true where the log has it already.
	Logged bool
}

// identity is equal for repetitions.
type identity struct {
	kind                     Kind
	service, object, subject string
}

// Ring keeps the last events. Methods may be called from any goroutine.
type Ring struct {
	log *slog.Logger

	mu     sync.Mutex
	number uint64
	list   []kept // by Number
	known  map[identity]uint64
	limits map[Kind]*rate.Limiter
}

type kept struct {
	Event
	id     identity
	logged time.Time // zero: not by this package
}

// NewRing makes an empty Ring that writes events to log, at level info.
func NewRing(log *slog.Logger) *Ring {
	return &Ring{log: log, list: make([]kept, 0, Size), known: map[identity]uint64{}, limits: map[Kind]*rate.Limiter{}}
}

// Add adds an event that occurs now.
func (r *Ring) Add(n New) { r.addAt(n, time.Now()) }

func (r *Ring) addAt(n New, now time.Time) {
	n.Text, n.Service, n.Object = shortened(n.Text), shortened(n.Service), shortened(n.Object)
	r.mu.Lock()
	e := r.note(&n, now)
	line := !n.Logged && now.Sub(e.logged) >= logAgain
	if line {
		e.logged = now
	}
	event := e.Event
	r.mu.Unlock()
	if line {
		r.write(&event)
	}
}

// note returns the entry of n, until the next call. Preconditions: r.mu is held.
func (r *Ring) note(n *New, now time.Time) *kept {
	times := max(1, n.Times)
	id := identity{n.Kind, n.Service, n.Object, shortened(n.Identity)}
	e, again := r.take(id, now)
	if !again && !r.limit(n.Kind).AllowN(now, 1) {
		id = identity{kind: n.Kind, subject: "others"}
		n.Service, n.Object = "", ""
		e, again = r.take(id, now)
		n.Text = "more events of this kind than are kept, the last: " + n.Text
	}
	if !again {
		e = kept{Event: Event{Kind: n.Kind, First: now}, id: id}
	}
	r.number++
	e.Number, e.Last, e.Count = r.number, now, e.Count+times
	e.Service, e.Object, e.Text, e.Severity = n.Service, n.Object, shortened(n.Text), n.Severity
	if e.Severity == "" {
		e.Severity = Note
	}
	if len(r.list) == Size {
		delete(r.known, r.list[0].id)
		r.list = slices.Delete(r.list, 0, 1)
	}
	r.list = append(r.list, e)
	r.known[id] = e.Number
	return &r.list[len(r.list)-1]
}

// take removes the entry of which an event is a repetition, and returns it.
func (r *Ring) take(id identity, now time.Time) (e kept, ok bool) {
	number, ok := r.known[id]
	if !ok {
		return e, false
	}
	at, _ := slices.BinarySearchFunc(r.list, number, func(e kept, n uint64) int {
		switch {
		case e.Number < n:
			return -1
		case e.Number > n:
			return 1
		}
		return 0
	})
	if now.Sub(r.list[at].Last) > repeatWithin {
		r.list[at].id = identity{} // a new entry has it from now on
		delete(r.known, id)
		return e, false
	}
	e = r.list[at]
	r.list = slices.Delete(r.list, at, at+1)
	delete(r.known, id)
	return e, true
}

func (r *Ring) limit(k Kind) *rate.Limiter {
	if r.limits[k] == nil {
		r.limits[k] = rate.NewLimiter(kindPerSecond, kindBurst)
	}
	return r.limits[k]
}

func (r *Ring) write(e *Event) {
	attrs := []any{"event", e.Kind}
	if e.Service != "" {
		attrs = append(attrs, "service", e.Service)
	}
	if e.Object != "" {
		attrs = append(attrs, "object", e.Object)
	}
	if e.Count > 1 {
		attrs = append(attrs, "count", e.Count, "since", e.First.Format(time.RFC3339))
	}
	r.log.Log(context.Background(), slog.LevelInfo, e.Text, attrs...)
}

// List returns the events that match, the last at the end, and the number of the last event
// of all.
func (r *Ring) List(f *Filter) (list []Event, last uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	list = []Event{}
	for i := len(r.list) - 1; i >= 0; i-- {
		if e := &r.list[i].Event; f.matches(e) {
			list = append(list, *e)
		}
		if f.Limit > 0 && len(list) == f.Limit {
			break
		}
	}
	slices.Reverse(list)
	return list, r.number
}

// shortened is s in at most maxText bytes.
func shortened(s string) string {
	if len(s) <= maxText {
		return s
	}
	const more = "..."
	return strings.Clone(strings.ToValidUTF8(s[:maxText-len(more)], "")) + more
}

// Some is a list of names, the first of them and how many more there are.
func Some(names []string) string {
	const most = 3
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}
