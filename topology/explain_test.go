package topology

import (
	"slices"
	"strings"
	"testing"
)

func TestExplain(t *testing.T) {
	for _, test := range []struct {
		name      string
		policy    Policy
		endpoints string
		reasons   string // one per line
		local     string
	}{
		{"conditions", inside, "1 ready\n2 unready\n3 leaving\n4 gone", `
			ready
			not ready
			terminating and serving: not used while an endpoint is ready
			terminating and not serving`, ""},
		{"fallback", inside, "1 leaving\n2 unready", `
			terminating and serving: fallback, no ready endpoint
			not ready`, ""},
		{"zone hints", inside, "1 ready hints=za\n2 ready hints=zb\n3 ready hints=zb,zc\n4 ready hints=za,zb", `
			ready: zone hint za names this node's zone
			ready: zone hint zb does not name this node's zone za
			ready: zone hints zb, zc do not name this node's zone za
			ready: zone hints za, zb name this node's zone`, ""},
		{"node hints", inside, "1 ready nodehints=n1\n2 ready nodehints=n2", `
			ready: node hint n1 names this node
			ready: node hint n2 does not name this node n1`, ""},
		{"a hint is missing", inside, "1 ready hints=za\n2 ready", `
			ready; hints ignored: ready endpoint 10.0.0.2:80 has no zone hint
			ready; hints ignored: ready endpoint 10.0.0.2:80 has no zone hint`, ""},
		{"no hint fits", inside, "1 ready hints=zb", "ready; hints ignored: none names this node's zone za", ""},
		{"no node hint fits", inside, "1 ready nodehints=n2", "ready; hints ignored: none names this node n1", ""},
		{"topology keys", keys(LabelZone, "example.com/rack"), "1 ready zone=za\n2 ready zone=zb rack=k1\n3 ready zone=zb\n4 ready", `
			ready: topology key topology.kubernetes.io/zone: za as this node
			ready: topology key example.com/rack not reached: a key before it matches other endpoints
			ready: no topology key matches: topology.kubernetes.io/zone is zb, this node's is za
			ready: no topology key matches: the endpoint's node has no label topology.kubernetes.io/zone`, ""},
		{"the star", keys(LabelHostname, "*"), "2 ready", `ready: topology key "*"`, ""},
		{"own tiers", own(PreferSameNode, 0), "1 ready node=n1\n2 ready zone=za\n3 ready region=r1\n4 ready zone=zc", `
			ready: on this node
			ready: in this node's zone za, not used: nearer endpoints serve
			ready: in this node's region r1, not used: nearer endpoints serve
			ready: farther than region of this node, in zone zc, not used: nearer endpoints serve`, ""},
		{"spilling over", own(PreferSameZone, 100), "1 ready zone=za\n2 unready zone=za\n3 ready zone=zb", `
			ready: in this node's zone za; 50.0 % of new flows, min-ready-percent 100
			not ready
			ready: farther than region of this node, in zone zb; 50.0 % of new flows, min-ready-percent 100`, ""},
		{"inferred node", outsideLocal, "1 ready node=n1 inferred\n2 ready node=n2\n3 ready", `
			ready; node inferred from address
			ready
			ready`, `
			on this node, ready; node inferred from address
			not on this node: on n2
			not on this node: its node is not known`},
		{"only Local", insideLocal, "1 leaving node=n1\n2 ready node=n2", `
			on this node, terminating and serving: fallback, no ready endpoint on this node
			not on this node: on n2`, `
			on this node, terminating and serving: fallback, no ready endpoint on this node
			not on this node: on n2`},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := Explain(test.policy, parse(t, test.endpoints), here)
			if got, want := r.Reasons, lines(test.reasons); !slices.Equal(got, want) {
				t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
			if got, want := r.LocalReasons, lines(test.local); !slices.Equal(got, want) {
				t.Errorf("local: got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
		})
	}
}

func lines(text string) []string {
	var out []string
	for line := range strings.Lines(strings.TrimSpace(text)) {
		out = append(out, strings.TrimSpace(line))
	}
	return out
}
