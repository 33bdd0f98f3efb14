package top

import (
	"context"
	"strings"
	"time"

	"github.com/weirlb/weir/cmd/weir/api"
)

const (
	// maxRows bounds the memory: further rows are counted, not kept.
	maxRows = 20000
	// lookTimeout is how long a look may take.
	lookTimeout = 15 * time.Second
)

// source looks at a running Weir, and keeps the counters of the last look for rates.
type source struct {
	client *api.Client

	last struct {
		pid    int
		start  time.Time
		at     time.Time // zero: there is no last look
		node   api.Totals
		tab    *tab
		counts map[string][]uint64 // by row, for the tab
	}
}

// sample is the state at a look.
type sample struct {
	at      time.Time
	took    time.Duration
	seconds float64 // since the look before; 0: there are no rates yet
	tab     *tab
	filter  string
	rows    []row
	left    int // rows beyond maxRows

	node, version, state string
	pid                  int
	uptime               time.Duration
	flows, maxFlows      uint64
	problems             int
	rates                api.Rates
	restarted            bool // the daemon is not that of the look before
}

// row is a line of a table.
type row struct {
	cells []cell
}

// look asks for the tab's rows that the filter lets pass.
func (s *source) look(ctx context.Context, t *tab, filter string) (*sample, error) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	began := time.Now()
	status, err := s.client.Status(ctx)
	if err != nil {
		return nil, err
	}
	out := &sample{at: began, tab: t, filter: filter}
	last := &s.last
	out.restarted = !last.at.IsZero() && (last.pid != status.PID || !last.start.Equal(status.StartTime))
	if out.restarted {
		last.at, last.counts = time.Time{}, nil
	}
	if !last.at.IsZero() {
		out.seconds = began.Sub(last.at).Seconds()
	}
	now := status.Totals()
	out.head(status, now, last.node)
	g := &gatherer{status: status, sample: out, filter: strings.ToLower(filter), next: map[string][]uint64{}}
	if last.tab == t && last.counts != nil {
		g.before = last.counts
		g.seconds = out.seconds
	}
	if err := t.look(ctx, s, g); err != nil {
		return nil, err
	}
	last.pid, last.start, last.at, last.node = status.PID, status.StartTime, began, now
	last.tab, last.counts = t, g.next
	out.took = time.Since(began)
	return out, nil
}

// head fills in the state of the node.
func (o *sample) head(st *api.Status, now, before api.Totals) {
	o.node, o.version, o.pid = st.Node, st.Version, st.PID
	o.uptime = time.Duration(st.UptimeSeconds * float64(time.Second))
	o.flows, o.maxFlows = st.Flows.Current, st.Flows.Max
	o.problems = len(st.Problems) + st.ProblemsLeftOut
	switch c, text := st.Condition(); c {
	case api.Unhealthy:
		o.state = "unhealthy: " + st.Unhealthy
	case api.Starting:
		o.state = "waiting for Services"
	case api.LastKnown:
		o.state = "serving the last known state"
	case api.Draining:
		o.state = "draining"
	default:
		o.state = text
	}
	o.rates = now.Since(before, o.seconds)
}

// gatherer takes the rows of a look.
type gatherer struct {
	*sample
	status  *api.Status
	filter  string // in lower case
	seconds float64
	before  map[string][]uint64
	next    map[string][]uint64
}

// add takes a row, with counters that make the next look's rates. cells gets the rates.
func (g *gatherer) add(key string, counts []uint64, cells func(rates []cell) []cell) {
	rates := make([]cell, len(counts))
	before, known := g.before[key]
	for i := range counts {
		switch {
		case known && len(before) == len(counts):
			rates[i] = real(api.PerSecond(counts[i], before[i], g.seconds))
		case g.seconds > 0 && len(g.before) < maxRows: // the row is new since the last look
			rates[i] = real(api.PerSecond(counts[i], 0, g.seconds))
		default:
			rates[i] = unknown
		}
	}
	r := row{cells(rates)}
	switch {
	case !r.matches(g.tab, g.filter):
	case len(g.rows) == maxRows:
		g.left++
	default:
		g.rows = append(g.rows, r)
	}
	if len(counts) > 0 && len(g.next) < maxRows {
		g.next[key] = counts
	}
}

// matches reports whether a text of the row has the filter, which is in lower case.
func (r *row) matches(t *tab, filter string) bool {
	if filter == "" {
		return true
	}
	for i := range r.cells {
		if t.columns[i].kind == text && strings.Contains(strings.ToLower(r.cells[i].text), filter) {
			return true
		}
	}
	return false
}
