package topology

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"testing"
)

// parse reads endpoints, one per line: a number (10.0.0.N:80), a condition
// (ready, unready, serving = neither ready nor terminating, leaving = serving
// and terminating, gone = terminating and not serving, published = ready and
// terminating) and what else is known: node=, zone=, region=, rack=,
// hints=z1,z2, nodehints=n1,n2, weight=, inferred.
func parse(t testing.TB, text string) []Endpoint {
	t.Helper()
	var eps []Endpoint
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		e := Endpoint{AddrPort: netip.MustParseAddrPort("10.0.0." + words[0] + ":80"), Labels: map[string]string{}}
		for _, w := range words[1:] {
			key, value, _ := strings.Cut(w, "=")
			switch key {
			case "ready":
				e.Ready, e.Serving = true, true
			case "published":
				e.Ready, e.Serving, e.Terminating = true, true, true
			case "serving":
				e.Serving = true
			case "unready":
			case "leaving":
				e.Serving, e.Terminating = true, true
			case "gone":
				e.Terminating = true
			case "inferred":
				e.Inferred = true
			case "node":
				e.NodeName = value
				e.Labels[LabelHostname] = value
			case "zone":
				e.Zone = value
				e.Labels[LabelZone] = value
			case "region":
				e.Labels[LabelRegion] = value
			case "rack":
				e.Labels["example.com/rack"] = value
			case "hints":
				e.HintZones = strings.Split(value, ",")
			case "weight":
				n, err := strconv.ParseUint(value, 10, 32)
				if err != nil {
					t.Fatal(err)
				}
				e.Weight = uint32(n)
			case "nodehints":
				e.HintNodes = strings.Split(value, ",")
			default:
				t.Fatalf("word %q", w)
			}
		}
		eps = append(eps, e)
	}
	return eps
}

// show is a choice as "tier: 1 2", with shares as "1=0.50", "-" for nil.
func show(c *Chosen, eps []Endpoint) string {
	if c == nil {
		return "-"
	}
	text := string(c.Tier) + ":"
	for i, n := range c.Endpoints {
		a := eps[n].AddrPort.Addr().As4()
		text += fmt.Sprintf(" %d", a[3])
		if c.Shares != nil {
			text += fmt.Sprintf("=%.3f", c.Shares[i])
		}
	}
	return text
}

// here is the node of most cases.
var here = Node{Name: "n1", Labels: map[string]string{
	LabelHostname: "n1", LabelZone: "za", LabelRegion: "r1", "example.com/rack": "k1",
}}

var (
	inside        = Policy{}
	insideLocal   = Policy{InternalLocal: true}
	outsideLocal  = Policy{External: true, ExternalLocal: true}
	everyLocal    = Policy{InternalLocal: true, External: true, ExternalLocal: true}
	unreachableET = Policy{ExternalLocal: true}
)

func keys(k ...string) Policy { return Policy{TopologyKeys: k} }

func own(d Distribution, percent int) Policy {
	return Policy{Distribution: d, MinReadyPercent: percent}
}

type selectCase struct {
	name      string
	policy    Policy
	node      *Node // nil: here
	endpoints string
	cluster   string
	local     string // "": not used
	none      bool   // no endpoint anywhere
}

func run(t *testing.T, cases []selectCase) {
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			eps := parse(t, c.endpoints)
			node := here
			if c.node != nil {
				node = *c.node
			}
			r := Select(c.policy, eps, node)
			if c.local == "" {
				c.local = "-"
			}
			if got := show(r.Cluster, eps); got != c.cluster {
				t.Errorf("cluster: got %q, want %q", got, c.cluster)
			}
			if got := show(r.Local, eps); got != c.local {
				t.Errorf("local: got %q, want %q", got, c.local)
			}
			if r.HasAnyEndpoints == c.none {
				t.Errorf("HasAnyEndpoints is %v", r.HasAnyEndpoints)
			}
		})
	}
}
