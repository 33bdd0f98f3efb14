package charttest

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"
)

// unitPanel is a panel of the dashboard with the units of its values.
type unitPanel struct {
	Type, Title string
	Targets     []struct{ Expr string }
	FieldConfig struct {
		Defaults struct {
			Unit     string
			Mappings []json.RawMessage
		}
		Overrides []struct {
			Matcher    struct{ ID, Options string }
			Properties []struct {
				ID    string
				Value any
			}
		}
	}
	Transformations []struct {
		Options struct {
			IndexByName  map[string]int
			RenameByName map[string]string
		}
	}
	GridPos struct{ W int }
}

func unitPanels(t *testing.T) []unitPanel {
	t.Helper()
	text, err := os.ReadFile(dashboardFile)
	if err != nil {
		t.Fatal(err)
	}
	var d struct{ Panels []unitPanel }
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	return d.Panels
}

// column returns the name of the value's column, after renames.
func (p unitPanel) column() string {
	for _, tr := range p.Transformations {
		if name := tr.Options.RenameByName["Value"]; name != "" {
			return name
		}
	}
	return "Value"
}

// override returns a property of the value's column.
func (p unitPanel) override(property string) any {
	for _, o := range p.FieldConfig.Overrides {
		if o.Matcher.ID != "byName" || o.Matcher.Options != p.column() {
			continue
		}
		for _, set := range o.Properties {
			if set.ID == property {
				return set.Value
			}
		}
	}
	return nil
}

// Grafana applies the defaults of a table to all columns: with a unit of dates, it parses
// instance, job and version as dates and shows NaN (grafana/grafana#32203).
func TestDashboardTablesHaveUnitsOfTheValueAlone(t *testing.T) {
	want := map[string]struct {
		property string
		value    any
	}{
		"Version and start": {"unit", "dateTimeAsIso"},
		// The unit short rounds: hashes that differ look alike.
		"Nodes that differ": {"unit", "none"},
		// A cell of another type ignores the colors of mappings.
		"Interfaces by node": {"custom.cellOptions", map[string]any{"type": "color-text"}},
	}
	for _, p := range unitPanels(t) {
		if p.Type != "table" {
			continue
		}
		if d := p.FieldConfig.Defaults; d.Unit != "" || len(d.Mappings) > 0 {
			t.Errorf("%s: the unit %q and %d mappings apply to all columns", p.Title, d.Unit, len(d.Mappings))
		}
		w, ok := want[p.Title]
		if !ok {
			t.Errorf("%s: the test does not have this table", p.Title)
		}
		got, _ := json.Marshal(p.override(w.property))
		value, _ := json.Marshal(w.value)
		if string(got) != string(value) {
			t.Errorf("%s: %s of column %q is %s, want %s", p.Title, w.property, p.column(), got, value)
		}
		delete(want, p.Title)
	}
	if len(want) > 0 {
		t.Errorf("no tables %v", want)
	}
}

// A rate is shown per second. CPU seconds per second are a number of CPUs.
func TestDashboardShowsRatesPerSecond(t *testing.T) {
	rates := 0
	for _, p := range unitPanels(t) {
		for _, q := range p.Targets {
			if !strings.Contains(q.Expr, "rate(") || strings.Contains(q.Expr, "histogram_quantile(") || strings.Contains(q.Expr, "process_cpu_seconds_total") {
				continue
			}
			rates++
			if unit := p.FieldConfig.Defaults.Unit; !slices.Contains([]string{"pps", "cps", "bps"}, unit) {
				t.Errorf("%s: unit %q of the rate %s", p.Title, unit, q.Expr)
			}
		}
	}
	if rates < 20 {
		t.Errorf("%d rates only", rates)
	}
}

// A column is at least 150 pixels wide, and a panel of half the width at 1,400 pixels shows
// four: the one that the table is about is among them.
func TestDashboardTablesShowTheValueWithoutScrolling(t *testing.T) {
	for _, p := range unitPanels(t) {
		for _, tr := range p.Transformations {
			if at, ok := tr.Options.IndexByName["Value"]; !ok || 150*(at+1) > 1400*p.GridPos.W/24 {
				t.Errorf("%s: its value is column %d of %v", p.Title, at, tr.Options.IndexByName)
			}
		}
	}
}

// Grafana cuts a title that is longer than its panel: at 1,400 pixels, a unit of the grid has
// room for five characters.
func TestDashboardTitlesFitTheirPanels(t *testing.T) {
	for _, p := range unitPanels(t) {
		if room := 5 * p.GridPos.W; len(p.Title) > room {
			t.Errorf("%q has %d characters, the panel has room for %d", p.Title, len(p.Title), room)
		}
	}
}
