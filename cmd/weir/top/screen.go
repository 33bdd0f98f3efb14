package top

import (
	"cmp"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	tea "charm.land/bubbletea/v2"

	"github.com/weirlb/weir/cmd/weir/view"
)

// Lines above the rows, and below.
const headLines, footLines = 4, 1

// View implements tea.Model.
func (m *model) View() tea.View {
	v := tea.NewView(m.screen())
	v.AltScreen = true
	return v
}

// body is how many rows fit.
func (m *model) body() int { return max(0, m.height-headLines-footLines) }

// Styles say the same without colors: bold, reverse, faint.
const (
	plain   = "\x1b[0m"
	bold    = "\x1b[1m"
	faint   = "\x1b[2m"
	reverse = "\x1b[7m"
	red     = "\x1b[1;31m"
)

// screen is the text of the whole terminal, at most height lines of width.
func (m *model) screen() string {
	if m.width < 20 || m.height <= headLines+footLines {
		return cut("weir top: the terminal is too small", m.width)
	}
	b := &strings.Builder{}
	m.headline(b)
	m.totals(b)
	m.tabLine(b)
	if m.help {
		m.helpText(b)
		return b.String()
	}
	m.table(b)
	m.foot(b)
	return b.String()
}

// line writes a line in a style, filled up to the width.
func (m *model) line(b *strings.Builder, style, s string) {
	s = cut(s, m.width)
	if style == reverse {
		s += strings.Repeat(" ", m.width-utf8.RuneCountInString(s))
	}
	if style != "" {
		s = style + s + plain
	}
	b.WriteString(s + "\n")
}

func cut(s string, width int) string {
	if n := utf8.RuneCountInString(s); n <= width {
		return s
	}
	return string([]rune(s)[:max(0, width)])
}

func (m *model) headline(b *strings.Builder) {
	s := m.sample
	style, state := bold, "..."
	if s != nil {
		state = s.state
		if s.problems > 0 {
			state += fmt.Sprintf(", %d problems", s.problems)
		}
	}
	switch {
	case m.err != nil:
		style, state = red, fmt.Sprintf("%s (since %s)", m.trouble(), m.away.Format(time.TimeOnly))
	case m.paused:
		state += "  PAUSED"
	case !m.restarted.IsZero() && time.Since(m.restarted) < time.Minute:
		state += ", restarted " + m.restarted.Format(time.TimeOnly)
	}
	node := "weir top"
	if s != nil {
		node = fmt.Sprintf("weir top  %s  pid %d  up %s", s.node, s.pid, view.Age(s.uptime))
	}
	m.line(b, style, view.Line(node+"  "+state))
}

func (m *model) totals(b *strings.Builder) {
	if m.sample == nil {
		m.line(b, "", "")
		return
	}
	s := m.sample
	r := func(v float64) string { return rate.show(real(v)) }
	m.line(b, "", fmt.Sprintf("flows %s of %s  packets %s/s  bytes %s/s  new flows %s/s  drops %s/s",
		view.Short(float64(s.flows)), view.Short(float64(s.maxFlows)), r(s.rates.Packets), r(s.rates.Bytes), r(s.rates.Flows), r(s.rates.Drops)))
}

func (m *model) tabLine(b *strings.Builder) {
	used := 0
	for i, t := range tabs {
		name := fmt.Sprintf(" %d %s ", i+1, t.title)
		if t == m.tab {
			name = "[" + strings.TrimSpace(name) + "]"
		}
		used += len(name)
		switch {
		case used > m.width:
		case t == m.tab:
			b.WriteString(bold + name + plain)
		default:
			b.WriteString(name)
		}
	}
	if filter := "  filter: " + view.Line(m.filter); m.filter != "" {
		b.WriteString(cut(filter, m.width-used))
	}
	b.WriteString("\n")
}

func (m *model) table(b *strings.Builder) {
	if m.sample == nil {
		b.WriteString(strings.Repeat("\n", 1+m.body()))
		return
	}
	s := m.sample
	m.top = max(0, min(m.top, len(s.rows)-m.body()))
	shown := s.rows[m.top:min(len(s.rows), m.top+m.body())]
	cells, widths := m.tab.layout(shown, m.by, m.width)
	for i, line := range cells {
		style := ""
		switch {
		case i == 0:
			style = reverse
		case m.err != nil:
			style = faint
		}
		m.line(b, style, joinCells(m.tab, line, widths))
	}
	if len(s.rows) == 0 {
		m.line(b, "", m.nothing())
		shown = make([]row, 1)
	}
	b.WriteString(strings.Repeat("\n", m.body()-len(shown)))
}

func (m *model) nothing() string {
	if m.filter != "" {
		return "Nothing matches the filter"
	}
	return "Nothing"
}

// layout returns the texts of head and rows by column, and the width of each column, 0 for
// those that a narrow terminal has no room for.
func (t *tab) layout(rows []row, by, width int) (cells [][]string, widths []int) {
	widths = make([]int, len(t.columns))
	head := make([]string, len(t.columns))
	for i, c := range t.columns {
		head[i] = c.title
		if i == by {
			head[i] += "*"
		}
	}
	cells = append(cells, head)
	for _, r := range rows {
		line := make([]string, len(t.columns))
		for i, c := range t.columns {
			line[i] = c.kind.show(r.cells[i])
		}
		cells = append(cells, line)
	}
	for _, line := range cells {
		for i, s := range line {
			least := 0
			if t.columns[i].kind == rate { // a column does not move with each look
				least = 6
			}
			widths[i] = max(widths[i], least, utf8.RuneCountInString(s))
		}
	}
	t.shrink(widths, by, width)
	return cells, widths
}

// least is the smallest width to which a text is cut.
const least = 16

// shrink makes the columns fit into the width: it cuts the longest text, and gives up columns.
func (t *tab) shrink(widths []int, by, width int) {
	for {
		over, longest, last := -2-width, -1, -1
		for i, w := range widths {
			if w == 0 {
				continue
			}
			over += w + 2
			if t.columns[i].kind == text && w > least && (longest < 0 || w > widths[longest]) {
				longest = i
			}
			if i != by && t.columns[i].rank > 0 && (last < 0 || t.columns[i].rank >= t.columns[last].rank) {
				last = i
			}
		}
		switch {
		case over <= 0:
			return
		case longest >= 0 && widths[longest] > 2*least:
			widths[longest] = max(2*least, widths[longest]-over)
		case last >= 0:
			widths[last] = 0
		case longest >= 0:
			widths[longest] = max(least, widths[longest]-over)
		default:
			return
		}
	}
}

// joinCells is a line of the table: texts to the left, numbers to the right.
func joinCells(t *tab, line []string, widths []int) string {
	var parts []string
	for i, s := range line {
		w := widths[i]
		if w == 0 {
			continue
		}
		if utf8.RuneCountInString(s) > w {
			s = string([]rune(s)[:w-1]) + "…"
		}
		if t.columns[i].kind == text {
			w = -w
		}
		parts = append(parts, fmt.Sprintf("%*s", w, s))
	}
	return strings.TrimRight(strings.Join(parts, "  "), " ")
}

func (m *model) foot(b *strings.Builder) {
	if m.typing {
		b.WriteString(cut("filter: "+view.Line(m.typed)+"_", m.width))
		return
	}
	place := ""
	if s := m.sample; s != nil {
		last := min(len(s.rows), m.top+m.body())
		place = fmt.Sprintf("%d-%d of %d", min(m.top+1, last), last, len(s.rows))
		if s.left > 0 {
			place += fmt.Sprintf(", %d not kept: set a filter", s.left)
		}
	}
	keys := fmt.Sprintf("%s  every %v  q quit  ? help  / filter  < > sort  space pause", cmp.Or(place, "..."), m.interval)
	b.WriteString(faint + cut(keys, m.width) + plain)
}

const helpLines = `
  1-5, tab      Services, endpoints, workers, client prefixes, drops
  < > left right   the column to sort by, marked *     r   the other direction
  /             show rows with this text; esc shows all
  space, p      pause, and go on
  + -           longer and shorter time between two looks
  up down pgup pgdown home end   scroll
  ?             this help          q   quit

  Rates are per second since the look before. Packets and bytes of a Service (~)
  are estimates, without those that the kernel forwards by the flow table.
  FAILING are endpoints that fail their check or are ejected.
  Client prefixes are /24 of IPv4 and /64 of IPv6; the daemon rests for 20 times as
  long as it has counted them. Drops without a Service are of none.

  Any key returns.`

func (m *model) helpText(b *strings.Builder) {
	lines := strings.Split(helpLines, "\n")
	for _, l := range lines[:min(len(lines), m.height-3)] {
		m.line(b, "", l)
	}
}
