// Package top is the live view of a running Weir in a terminal. All that it shows is in answers
// of the API.
package top

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/cmd/weir/view"
)

// Options are those of the command.
type Options struct {
	Tab      string // of Names
	Sort     string // name of a column; "": that of the tab
	Reverse  bool
	Filter   string
	Interval time.Duration
	Limit    int // rows of Once and JSON; 0: all
}

// newModel checks the options.
func newModel(ctx context.Context, c *api.Client, o *Options) (*model, error) {
	t := tabOf(o.Tab)
	if t == nil {
		return nil, fmt.Errorf("--tab: must be %s, is %q", strings.Join(Names(), ", "), o.Tab)
	}
	by := t.order
	if o.Sort != "" {
		var err error
		if by, err = t.columnOf(o.Sort); err != nil {
			return nil, fmt.Errorf("--sort: %w", err)
		}
	}
	if o.Interval < intervals[0] {
		return nil, fmt.Errorf("--interval: must be at least %v, is %v", intervals[0], o.Interval)
	}
	return &model{
		ctx: ctx, source: &source{client: c}, tab: t, by: by, reverse: o.Reverse, filter: o.Filter, interval: o.Interval,
		width: 80, height: 24,
	}, nil
}

// Check says which option is wrong.
func (o *Options) Check() error {
	_, err := newModel(context.Background(), nil, o)
	return err
}

// Live shows the view until the user quits or ctx ends.
func Live(ctx context.Context, c *api.Client, o *Options, in io.Reader, out io.Writer) error {
	m, err := newModel(ctx, c, o)
	if err != nil {
		return err
	}
	s, err := m.source.look(ctx, m.tab, m.filter)
	if err != nil {
		return err // a terminal without a Weir has nothing to show
	}
	m.take(looked{sample: s})
	_, err = tea.NewProgram(m, tea.WithContext(ctx), tea.WithInput(in), tea.WithOutput(out), tea.WithoutSignalHandler()).Run()
	if ctx.Err() != nil && errors.Is(err, tea.ErrProgramKilled) {
		return nil
	}
	return err
}

// twice looks twice, so that there are rates.
func twice(ctx context.Context, c *api.Client, o *Options) (*model, error) {
	m, err := newModel(ctx, c, o)
	if err != nil {
		return nil, err
	}
	if _, err := m.source.look(ctx, m.tab, m.filter); err != nil {
		return nil, err
	}
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(m.interval):
	}
	s, err := m.source.look(ctx, m.tab, m.filter)
	if err != nil {
		return nil, err
	}
	m.take(looked{sample: s})
	if o.Limit > 0 && len(s.rows) > o.Limit {
		s.left += len(s.rows) - o.Limit
		s.rows = s.rows[:o.Limit]
	}
	return m, nil
}

// Once writes the table as it is after an interval.
func Once(ctx context.Context, c *api.Client, o *Options, w io.Writer) error {
	m, err := twice(ctx, c, o)
	if err != nil {
		return err
	}
	b := &strings.Builder{}
	m.width = math.MaxInt32
	s := m.sample
	fmt.Fprintf(b, "%s  %s  pid %d  up %s  %s\n", s.at.Format(time.RFC3339), view.Line(s.node), s.pid, view.Age(s.uptime), view.Line(s.state))
	m.totals(b)
	b.WriteByte('\n')
	cells, widths := m.tab.layout(s.rows, m.by, m.width)
	for _, line := range cells {
		b.WriteString(joinCells(m.tab, line, widths) + "\n")
	}
	if s.left > 0 {
		fmt.Fprintf(b, "... and %d more\n", s.left)
	}
	_, err = io.WriteString(w, b.String())
	return err
}

// JSON writes the table as it is after an interval as an object. Unknown numbers are null.
func JSON(ctx context.Context, c *api.Client, o *Options, w io.Writer) error {
	m, err := twice(ctx, c, o)
	if err != nil {
		return err
	}
	s := m.sample
	rows := []map[string]any{}
	for _, r := range s.rows {
		object := map[string]any{}
		for i, c := range m.tab.columns {
			object[c.name] = c.kind.json(r.cells[i])
		}
		rows = append(rows, object)
	}
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(struct {
		Time    time.Time        `json:"time"`
		Node    string           `json:"node"`
		Seconds float64          `json:"seconds"`
		Tab     string           `json:"tab"`
		Rows    []map[string]any `json:"rows"`
		Left    int              `json:"left,omitempty"`
	}{s.at, s.node, s.seconds, m.tab.name, rows, s.left})
}

func (k kind) json(c cell) any {
	switch {
	case k == text:
		return c.text
	case math.IsNaN(c.value) || math.IsInf(c.value, 0):
		return nil
	}
	return c.value
}
