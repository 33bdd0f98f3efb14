package charttest

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/grafana/grafana-foundation-sdk/go/cog"
	"github.com/grafana/grafana-foundation-sdk/go/cog/plugins"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
)

// Grafana's own types take the dashboard: a field that they do not know, or that a panel of
// its type needs and does not have, is an error.
func TestDashboardIsOfGrafanasTypes(t *testing.T) {
	plugins.RegisterDefaultPlugins()
	for _, name := range []string{dashboardFile, chartDir + "/dashboards/weir.json"} {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		d, err := strictly(text)
		if err != nil {
			t.Errorf("%s:\n%v", name, err)
		}
		for _, p := range d.Panels {
			// Options of a type of panel that is not registered are taken as they are.
			if q := p.Panel; q != nil {
				if _, unknown := q.Options.(map[string]any); unknown || q.Options == nil {
					t.Errorf("%s: panel %d has type %s, which is not known", name, *q.Id, q.Type)
				}
			}
		}
		for _, wrong := range []struct{ old, new, want string }{
			{`"title": "Nodes serving"`, `"titel": "Nodes serving"`, "titel"},
			{`"colorMode": "value"`, `"colourMode": "value"`, "colourMode"},
			{`"frameIndex": 0`, `"frameIndex": "first"`, "frameIndex"},
		} {
			_, err := strictly([]byte(strings.Replace(string(text), wrong.old, wrong.new, 1)))
			if err == nil || !strings.Contains(err.Error(), wrong.want) {
				t.Errorf("%s with %s: %v", name, wrong.new, err)
			}
		}
	}
}

// strictly decodes a dashboard. The library returns a list of faults as an error, also
// where it is empty.
func strictly(text []byte) (d dashboard.Dashboard, err error) {
	err = d.UnmarshalJSONStrict(text)
	if faults, ok := errors.AsType[cog.BuildErrors](err); ok && len(faults) == 0 {
		err = nil
	}
	return d, errors.Join(err, d.Validate())
}
