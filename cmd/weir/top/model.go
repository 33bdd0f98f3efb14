package top

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"

	"github.com/weirlb/weir/cmd/weir/api"
)

// intervals are the times between two looks to choose from.
var intervals = []time.Duration{
	500 * time.Millisecond, time.Second, 2 * time.Second, 5 * time.Second, 10 * time.Second, 30 * time.Second, time.Minute,
}

// walkRest is how many times as long as a walk over all connections the daemon rests from it.
const walkRest = 20

// model is the state of the live view. A single look is under way at any time.
type model struct {
	ctx    context.Context
	source *source

	tab      *tab
	by       int // number of the column by which rows are sorted
	reverse  bool
	filter   string
	interval time.Duration
	paused   bool

	typing bool   // the filter is being typed
	typed  string // so far
	help   bool

	width, height int
	top           int // first row that is shown

	sample    *sample // the last look, nil before the first of the tab
	looking   bool
	again     bool // look again as soon as the look that is under way ends
	tick      int  // number of the timer that counts: others are old
	err       error
	away      time.Time // since when there is no answer
	restarted time.Time // when the last restart of the daemon was seen
}

// looked is the end of a look.
type looked struct {
	sample *sample
	err    error
	at     time.Time
}

// due is the end of the time between two looks.
type due int

// Init implements tea.Model: the first look has been made, for the case that no Weir runs.
func (m *model) Init() tea.Cmd { return m.wait(time.Second) }

// look begins a look, or notes that another is due after that which is under way.
func (m *model) look() tea.Cmd {
	if m.looking {
		m.again = true
		return nil
	}
	m.looking, m.again = true, false
	m.tick++ // a timer that runs is not needed any more
	t, filter := m.tab, m.filter
	return func() tea.Msg {
		s, err := m.source.look(m.ctx, t, filter)
		return looked{s, err, time.Now()}
	}
}

// wait begins the time until the next look.
func (m *model) wait(d time.Duration) tea.Cmd {
	m.tick++
	n := m.tick
	return tea.Tick(d, func(time.Time) tea.Msg { return due(n) })
}

// Update implements tea.Model.
func (m *model) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.width, m.height = msg.Width, msg.Height
	case looked:
		return m, m.take(msg)
	case due:
		if int(msg) == m.tick && !m.paused {
			return m, m.look()
		}
	case tea.KeyPressMsg:
		if m.typing {
			return m, m.typeFilter(msg)
		}
		return m, m.press(msg.String())
	case tea.PasteMsg:
		if m.typing {
			m.typeText(msg.Content)
		}
	}
	return m, nil
}

// take takes the result of a look, and plans the next.
func (m *model) take(l looked) tea.Cmd {
	m.looking = false
	rest := m.interval
	switch {
	case l.err != nil:
		if m.err == nil {
			m.away = l.at
		}
		m.err = l.err
		rest = max(rest, time.Second)
	default:
		m.err, m.away = nil, time.Time{}
		if l.sample.restarted {
			m.restarted = l.at
		}
		if l.sample.tab == m.tab {
			m.sample = l.sample
			arrange(m.sample.rows, m.tab, m.by, m.reverse)
			if m.tab.walks {
				rest = max(rest, walkRest*l.sample.took)
			}
		}
	}
	if m.again { // also while paused: for another tab or filter
		return m.look()
	}
	return m.wait(rest)
}

// press obeys a key.
func (m *model) press(key string) tea.Cmd {
	if m.help && key != "q" && key != "ctrl+c" {
		m.help = false
		return nil
	}
	page := max(1, m.body())
	switch key {
	case "q", "ctrl+c":
		return tea.Quit
	case "?", "h":
		m.help = true
	case "tab", "shift+tab":
		step := 1
		if key == "shift+tab" {
			step = len(tabs) - 1
		}
		return m.show(tabs[(slices.Index(tabs, m.tab)+step)%len(tabs)])
	case "1", "2", "3", "4", "5":
		return m.show(tabs[key[0]-'1'])
	case "left", "<":
		m.sort((m.by + len(m.tab.columns) - 1) % len(m.tab.columns))
	case "right", ">":
		m.sort((m.by + 1) % len(m.tab.columns))
	case "r":
		m.reverse = !m.reverse
		m.sort(m.by)
	case "/":
		m.typing, m.typed = true, m.filter
	case "esc":
		return m.setFilter("")
	case "space", "p":
		m.paused = !m.paused
		if !m.paused {
			return m.look()
		}
	case "+", "=":
		return m.pace(1)
	case "-":
		return m.pace(-1)
	case "up", "k":
		m.top--
	case "down", "j":
		m.top++
	case "pgup":
		m.top -= page
	case "pgdown":
		m.top += page
	case "home", "g":
		m.top = 0
	case "end", "G":
		m.top = maxRows
	}
	return nil
}

// show turns to a tab.
func (m *model) show(t *tab) tea.Cmd {
	if t == m.tab {
		return nil
	}
	m.tab, m.by, m.reverse, m.top, m.sample = t, t.order, false, 0, nil
	return m.look() // also while paused: there would be nothing to see
}

// sort sorts by a column.
func (m *model) sort(by int) {
	m.by = by
	if m.sample != nil {
		arrange(m.sample.rows, m.tab, m.by, m.reverse)
	}
}

// pace takes the next longer or shorter interval.
func (m *model) pace(step int) tea.Cmd {
	i, found := slices.BinarySearch(intervals, m.interval)
	if !found && step > 0 { // i is the next longer already
		i--
	}
	m.interval = intervals[min(max(i+step, 0), len(intervals)-1)]
	if m.looking || m.paused {
		return nil
	}
	return m.wait(m.interval)
}

func (m *model) setFilter(s string) tea.Cmd {
	if s == m.filter {
		return nil
	}
	m.filter, m.top = s, 0
	return m.look()
}

// maxFilter bounds the filter that is typed.
const maxFilter = 200

// typeFilter obeys a key while the filter is typed.
func (m *model) typeFilter(msg tea.KeyPressMsg) tea.Cmd {
	switch key := msg.String(); key {
	case "enter":
		m.typing = false
		return m.setFilter(strings.TrimSpace(m.typed))
	case "esc":
		m.typing = false
	case "ctrl+c":
		return tea.Quit
	case "ctrl+u":
		m.typed = ""
	case "backspace":
		if r := []rune(m.typed); len(r) > 0 {
			m.typed = string(r[:len(r)-1])
		}
	default:
		m.typeText(msg.Text)
	}
	return nil
}

func (m *model) typeText(s string) {
	if room := maxFilter - len(m.typed); len(s) > room {
		s = strings.ToValidUTF8(s[:max(0, room)], "")
	}
	m.typed += s
}

// trouble is why there is no answer.
func (m *model) trouble() string {
	switch {
	case errors.Is(m.err, api.ErrTryAgain):
		return "busy"
	case errors.Is(m.err, context.DeadlineExceeded):
		return "reconnecting: no answer in time"
	}
	return "reconnecting: " + m.err.Error()
}
