package deploy

import (
	"os"
	"regexp"
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

// The chart's README lists these fields, and no others.
func TestReadmeOfTheChartListsWhatIsReloaded(t *testing.T) {
	text, err := os.ReadFile("helm/weir/README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "and replace no pod:\n")
	list, _, ok := strings.Cut(rest, "Every other change replaces pods")
	if !ok {
		t.Fatal("the list is not there")
	}
	var got []string
	for _, m := range regexp.MustCompile("`([A-Za-z0-9.]+)`").FindAllStringSubmatch(list, -1) {
		got = append(got, m[1])
	}
	slices.Sort(got)
	if want := config.Reloadable(); !slices.Equal(got, want) {
		t.Errorf("the README has %q, Weir reloads %q", got, want)
	}
}
