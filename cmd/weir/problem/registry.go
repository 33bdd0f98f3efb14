package problem

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// Bounds. Problems beyond them are counted, never kept.
const (
	maxPerPart = 1000 // problems that a part may have with an object
	logPerSec  = 10   // lines in the log
	logBurst   = 100
)

// Registry holds the present problems. The zero value is not usable. Methods may be called
// from any goroutine and do no I/O but the log's.
type Registry struct {
	log   *slog.Logger
	limit *rate.Limiter

	refreshing sync.Mutex // held from the question to the replacement: see Refresh

	mu       sync.Mutex
	objects  map[string]map[string]*entry // by object, then by part
	counts   map[Kind]int
	unlogged int // lines that the limit held back since the last line
	changed  func(object string)
	event    func(p Problem, ended bool)
}

// entry has the present problems of a part with an object.
type entry struct {
	list []Problem
	left map[Kind]int // beyond maxPerPart
}

// NewRegistry makes an empty Registry that writes to log.
func NewRegistry(log *slog.Logger) *Registry {
	return &Registry{
		log: log, limit: rate.NewLimiter(logPerSec, logBurst),
		objects: map[string]map[string]*entry{}, counts: map[Kind]int{},
	}
}

// OnChange has f called with the object whenever the problems of an object
// have changed. f is called without a lock held, possibly from several
// goroutines. OnChange must be called before the first Set.
func (r *Registry) OnChange(f func(object string)) { r.changed = f }

// OnEvent has f called for each problem that begins or ends. The same conditions as for
// OnChange apply. A problem whose Reason alone has changed begins again.
func (r *Registry) OnEvent(f func(p Problem, ended bool)) { r.event = f }

// Set replaces everything that part complains about object. Without problems it clears
// those that part has set before. A problem that was there already keeps Since; a new
// problem and the end of a problem are logged.
func (r *Registry) Set(part, object string, problems ...Problem) {
	r.mu.Lock()
	was := r.objects[object][part]
	if was == nil && len(problems) == 0 {
		r.mu.Unlock()
		return
	}
	now := bounded(object, problems)
	begun, ended := now.follow(was, time.Now())
	r.count(was, -1)
	r.count(now, 1)
	r.keep(part, object, now)
	lines := r.lines(begun, ended)
	r.mu.Unlock()
	for _, write := range lines {
		write()
	}
	if r.changed != nil && len(begun)+len(ended) > 0 {
		r.changed(object)
	}
	if r.event == nil {
		return
	}
	for _, p := range ended {
		r.event(p, true)
	}
	for _, p := range begun {
		r.event(p, false)
	}
}

// Replace replaces everything that part complains about any object: problems
// are sorted by their Object. A part that uses it must not use Set.
func (r *Registry) Replace(part string, problems ...Problem) {
	byObject := map[string][]Problem{}
	for _, p := range problems {
		byObject[p.Object] = append(byObject[p.Object], p)
	}
	r.mu.Lock()
	for object, parts := range r.objects {
		if _, again := byObject[object]; !again && parts[part] != nil {
			byObject[object] = nil
		}
	}
	r.mu.Unlock()
	for object, list := range byObject {
		r.Set(part, object, list...)
	}
}

// Refresh calls current and replaces the problems of part with its result, as
// Replace does. Of concurrent calls the last to ask replaces last: an older result never
// replaces a newer result. current must not call Refresh.
func (r *Registry) Refresh(part string, current func() []Problem) {
	r.refreshing.Lock()
	defer r.refreshing.Unlock()
	r.Replace(part, current()...)
}

// keep files e. Preconditions: r.mu is held.
func (r *Registry) keep(part, object string, e *entry) {
	parts := r.objects[object]
	if len(e.list) > 0 {
		if parts == nil {
			parts = map[string]*entry{}
			r.objects[object] = parts
		}
		parts[part] = e
		return
	}
	if delete(parts, part); len(parts) == 0 {
		delete(r.objects, object)
	}
}

// bounded is a copy of problems in order, each once, as far as there is room.
func bounded(object string, problems []Problem) *entry {
	list := make([]Problem, 0, len(problems))
	for _, p := range problems {
		if p.Object == "" {
			p.Object = object
		}
		d := p.Kind.Describe()
		p.Kind, p.Severity = d.Kind, d.Severity
		list = append(list, p)
	}
	slices.SortStableFunc(list, compare)
	list = slices.CompactFunc(list, func(a, b Problem) bool { return compare(a, b) == 0 })
	kept, left := shared(list, maxPerPart)
	e := &entry{list: kept}
	for _, p := range left {
		if e.left == nil {
			e.left = map[Kind]int{}
		}
		e.left[p.Kind]++
	}
	return e
}

// shared divides a sorted list into at most limit problems and those that are left out. The
// kinds share the room: each has as many as it needs, up to an equal part, before the worst
// take the remainder. Thus a thousand problems of a kind hide no other kind.
func shared(list []Problem, limit int) (kept, left []Problem) {
	if len(list) <= limit {
		return slices.Clip(list), nil
	}
	kinds := map[Kind]int{}
	for i := range list {
		kinds[list[i].Kind]++
	}
	part := limit / len(kinds)
	free := limit
	for _, n := range kinds {
		free -= min(n, part)
	}
	clear(kinds)
	for _, p := range list {
		switch kinds[p.Kind]++; {
		case kinds[p.Kind] <= part:
		case free > 0:
			free--
		default:
			left = append(left, p)
			continue
		}
		kept = append(kept, p)
	}
	return slices.Clip(kept), left
}

// follow gives the problems of e the times of those before that they go on
// from, and returns which are new and which of was are no more. A problem
// whose Reason alone has changed goes on, and is returned as new.
func (e *entry) follow(was *entry, now time.Time) (begun, ended []Problem) {
	type identity struct {
		Kind                  Kind
		Object, Field, Reason string
	}
	before := map[identity]*Problem{}
	if was != nil {
		for i := range was.list {
			p := &was.list[i]
			before[identity{p.Kind, p.Object, p.Field, p.Reason}] = p
		}
	}
	var unknown []*Problem
	for i := range e.list {
		p := &e.list[i]
		id := identity{p.Kind, p.Object, p.Field, p.Reason}
		old := before[id]
		if old == nil {
			unknown = append(unknown, p)
			continue
		}
		delete(before, id)
		p.began(old.Since)
	}
	other := map[identity]time.Time{} // by all but Reason
	for id, p := range before {
		id.Reason = ""
		other[id] = p.Since
	}
	for _, p := range unknown {
		id := identity{p.Kind, p.Object, p.Field, ""}
		if since, ok := other[id]; ok {
			p.began(since)
			delete(other, id)
		}
		p.began(now)
		begun = append(begun, *p)
	}
	for id, p := range before {
		id.Reason = ""
		if _, over := other[id]; over {
			ended = append(ended, *p)
		}
	}
	return begun, ended
}

// began sets Since, unless it is known.
func (p *Problem) began(at time.Time) {
	if p.Since.IsZero() {
		p.Since = at
	}
}

func (r *Registry) count(e *entry, by int) {
	if e == nil {
		return
	}
	for i := range e.list {
		r.counts[e.list[i].Kind] += by
	}
	for k, n := range e.left {
		r.counts[k] += by * n
	}
}

// lines are the new lines of the log, within the limit. Preconditions: r.mu is held.
func (r *Registry) lines(begun, ended []Problem) []func() {
	var out []func()
	add := func(p Problem, write func()) {
		switch {
		case p.Logged:
		case !r.limit.Allow():
			r.unlogged++
		default:
			if n := r.unlogged; n > 0 {
				r.unlogged = 0
				out = append(out, func() { r.log.Warn("problems not logged, see weir status", "number", n) })
			}
			out = append(out, write)
		}
	}
	for _, p := range begun {
		add(p, func() {
			r.log.Log(context.Background(), p.Severity.level(), p.Reason, "kind", p.Kind, "object", p.Object, "field", p.Field)
		})
	}
	for _, p := range ended {
		add(p, func() {
			r.log.Info("no longer: "+p.Reason, "kind", p.Kind, "object", p.Object, "field", p.Field, "after", time.Since(p.Since).Round(time.Second))
		})
	}
	return out
}

func (s Severity) level() slog.Level {
	switch s {
	case Error:
		return slog.LevelError
	case Warning:
		return slog.LevelWarn
	}
	return slog.LevelInfo
}

// List returns at most limit problems, the worst first and of every kind some, and how many
// more there are.
func (r *Registry) List(limit int) (list []Problem, more int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	list = []Problem{}
	for _, parts := range r.objects {
		for _, e := range parts {
			list = append(list, e.list...)
			for _, n := range e.left {
				more += n
			}
		}
	}
	slices.SortFunc(list, compare)
	list, left := shared(list, limit)
	return list, more + len(left)
}

// Of returns the problems of an object, the worst first.
func (r *Registry) Of(object string) []Problem {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []Problem
	for _, e := range r.objects[object] {
		out = append(out, e.list...)
	}
	slices.SortFunc(out, compare)
	return out
}

// Counts returns the number of problems of every kind, 0 included.
func (r *Registry) Counts() map[Kind]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make(map[Kind]int, len(Kinds))
	for _, d := range Kinds {
		out[d.Kind] = r.counts[d.Kind]
	}
	return out
}
