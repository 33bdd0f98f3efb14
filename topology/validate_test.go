package topology

import (
	"slices"
	"strconv"
	"strings"
	"testing"
)

func TestValidateTopologyKeys(t *testing.T) {
	var seventeen []string
	for i := range 17 {
		seventeen = append(seventeen, "k"+strconv.Itoa(i))
	}
	for _, test := range []struct {
		name  string
		keys  []string
		local bool
		want  []string // beginnings
	}{
		{"none", nil, true, nil},
		{"good ones", []string{LabelHostname, "rack", "a.b/C_d.e-f", "*"}, false, nil},
		{"sixteen", seventeen[:16], false, nil},
		{"seventeen", seventeen, false, []string{"spec.topologyKeys: Too many: 17: must have at most 16 items"}},
		{"twice the same", []string{"a", "a"}, false, []string{`spec.topologyKeys[1]: Duplicate value: "a"`}},
		{"star not last", []string{"*", "a"}, false, []string{`spec.topologyKeys[0]: Invalid value: "*": "*" must be the last value specified`}},
		{"two stars", []string{"*", "*"}, false, []string{
			`spec.topologyKeys[0]: Invalid value: "*": "*" must be the last value specified`,
			`spec.topologyKeys[1]: Duplicate value: "*"`}},
		{"with externalTrafficPolicy Local", []string{"a"}, true, []string{"spec.topologyKeys: Forbidden: may not be specified when `externalTrafficPolicy=Local`"}},
		{"empty", []string{""}, false, []string{
			`spec.topologyKeys[0]: Invalid value: "": name part must be non-empty`,
			`spec.topologyKeys[0]: Invalid value: "": name part must consist of`}},
		{"blank inside", []string{"a b"}, false, []string{`spec.topologyKeys[0]: Invalid value: "a b": name part must consist of`}},
		{"two slashes", []string{"a/b/c"}, false, []string{`spec.topologyKeys[0]: Invalid value: "a/b/c": a qualified name must consist of`}},
		{"prefix not a domain", []string{"A_/b"}, false, []string{`spec.topologyKeys[0]: Invalid value: "A_/b": prefix part`}},
		{"empty prefix", []string{"/b"}, false, []string{`spec.topologyKeys[0]: Invalid value: "/b": prefix part must be non-empty`}},
		{"long name", []string{strings.Repeat("a", 64)}, false, []string{`spec.topologyKeys[0]: Invalid value: "` + strings.Repeat("a", 64) + `": name part must be no more than 63`}},
		{"long prefix", []string{strings.Repeat("a", 254) + "/b"}, false, []string{`spec.topologyKeys[0]: Invalid value: "` + strings.Repeat("a", 254) + `/b": prefix part must be no more than 253`}},
		{"all at once", []string{"*", "b", "b", " "}, true, []string{
			"spec.topologyKeys: Forbidden", "spec.topologyKeys[0]: Invalid", "spec.topologyKeys[2]: Duplicate", "spec.topologyKeys[3]: Invalid"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := ValidateTopologyKeys(test.keys, test.local)
			if !slices.EqualFunc(got, test.want, strings.HasPrefix) {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}
