package topology

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

// What kube-proxy itself chose, see testdata/kube-proxy.txt.
func TestSelectAgainstKubeProxy(t *testing.T) {
	text, err := os.ReadFile("testdata/kube-proxy.txt")
	if err != nil {
		t.Fatal(err)
	}
	cases := strings.Split(strings.TrimSpace(string(text)), "\n\n")[1:]
	if len(cases) != 400 {
		t.Errorf("%d cases", len(cases))
	}
	for _, c := range cases {
		lines := strings.Split(c, "\n")
		head, at, want := lines[0], lines[1], lines[len(lines)-1]
		eps := parse(t, strings.Join(lines[2:len(lines)-1], "\n"))
		words := strings.Fields(head)
		p := Policy{
			External:      slices.Contains(words, "external"),
			ExternalLocal: slices.Contains(words, "externalLocal"),
			InternalLocal: slices.Contains(words, "internalLocal"),
		}
		node := Node{Labels: map[string]string{}}
		for _, w := range strings.Fields(at) {
			switch key, value, _ := strings.Cut(w, "="); key {
			case "node":
				node.Name = value
			case "zone":
				node.Labels[LabelZone] = value
			}
		}
		r := Select(p, eps, node)
		if got := fmt.Sprintf("= cluster %s local %s any %v", numbers(r.Cluster, eps), numbers(r.Local, eps), r.HasAnyEndpoints); got != want {
			t.Errorf("%s\ngot\n%s", c, got)
		}
	}
}

// numbers are a choice's endpoints as the file has them.
func numbers(c *Chosen, eps []Endpoint) string {
	if c == nil {
		return "-"
	}
	_, list, _ := strings.Cut(show(c, eps), ":")
	return "[" + strings.TrimSpace(list) + "]"
}
