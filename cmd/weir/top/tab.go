package top

import (
	"context"
	"fmt"
	"math"
	"strings"

	"github.com/weirlb/weir/cmd/weir/view"
)

// tab is a table of the view.
type tab struct {
	name, title string
	columns     []column
	order       int // number of the column by which rows are sorted at first
	// walks is true of a tab for which the daemon walks over all connections.
	walks bool
	look  func(context.Context, *source, *gatherer) error
}

// column is a column of a tab.
type column struct {
	name, title string // in JSON, and in the table
	kind        kind
	// rank decides which columns a narrow terminal has: the largest goes first, 0 stays.
	rank int
}

// kind is how the values of a column are shown.
type kind int

const (
	text kind = iota
	count
	rate  // per second; unknown at the first look
	share // 0 to 1
)

// cell is a value: text, or a number, NaN for an unknown number.
type cell struct {
	text  string
	value float64
}

func word(s string) cell                       { return cell{text: s} }
func number[T int | uint32 | uint64](n T) cell { return cell{value: float64(n)} }
func real(v float64) cell                      { return cell{value: v} }

var unknown = cell{value: math.NaN()}

// show is the text of a cell.
func (k kind) show(c cell) string {
	switch {
	case k == text && c.text == "":
		return "-"
	case k == text:
		return view.Line(c.text)
	case math.IsNaN(c.value):
		return "-"
	case k == share:
		return fmt.Sprintf("%.1f %%", 100*c.value)
	case k == rate && c.value != 0 && math.Abs(c.value) < 10:
		return fmt.Sprintf("%.1f", c.value)
	}
	return view.Short(c.value)
}

// tabs are all tables, in the order of their keys.
var tabs = []*tab{servicesTab, endpointsTab, workersTab, clientsTab, dropsTab}

// Names are the names of the tabs.
func Names() []string {
	var out []string
	for _, t := range tabs {
		out = append(out, t.name)
	}
	return out
}

// tabOf is the tab with a name, nil if there is none.
func tabOf(name string) *tab {
	for _, t := range tabs {
		if t.name == name {
			return t
		}
	}
	return nil
}

// columnOf is the number of the column with a name.
func (t *tab) columnOf(name string) (int, error) {
	var names []string
	for i, c := range t.columns {
		if c.name == name {
			return i, nil
		}
		names = append(names, c.name)
	}
	return 0, fmt.Errorf("tab %s has no column %q, but %s", t.name, name, strings.Join(names, ", "))
}
