package deploy

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/weirlb/weir/cmd/weir/config"
)

// The chart rolls no pod for a change of these fields: a running Weir has to take
// them over, and all that it takes over are among them.
func TestChartKnowsWhatIsReloaded(t *testing.T) {
	text, err := os.ReadFile("helm/weir/templates/_helpers.tpl")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), `{{- define "weir.reloadable" -}}`)
	list, _, ok := strings.Cut(rest, "{{- end -}}")
	if !ok {
		t.Fatal("the list is not there")
	}
	if got, want := strings.Fields(list), config.Reloadable(); !slices.Equal(got, want) {
		t.Errorf("the chart has %q, Weir reloads %q", got, want)
	}
}
