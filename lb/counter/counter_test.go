package counter

import (
	"strings"
	"testing"
)

// An entry that is missing would be published without a name, and a name that is
// used twice would hide a counter.
func TestEveryCounterHasNames(t *testing.T) {
	seen := map[string]Counter{}
	for c := range Counters {
		i := c.Info()
		if !strings.HasSuffix(i.Help, ".") {
			t.Errorf("counter %d: %q is no sentence", c, i.Help)
		}
		if i.Gauge == strings.HasSuffix(i.Metric, "_total") {
			t.Errorf("counter %d: gauge %v, metric %q", c, i.Gauge, i.Metric)
		}
		for _, name := range []string{i.Field, i.Metric} {
			if other, used := seen[name]; used || name == "" {
				t.Errorf("counter %d: the name %q is empty or that of counter %d", c, name, other)
			}
			seen[name] = c
		}
	}
}
