package deploy

import (
	"os/exec"
	"strings"
	"testing"
)

// The examples are served as their comments say, without a fault.
func TestExamplesAreServed(t *testing.T) {
	out, err := exec.Command(weir(t), "explain", "-f", "examples", "--node", "edge-1").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, want := range []string{
		"UDP 198.51.100.53:53  LoadBalancer  served", "TCP 198.51.100.53:53  LoadBalancer  served", "tier same-zone, 1 of 2 endpoints",
		"TCP 192.0.2.1:30080  NodePort  served", "192.0.2.12:8080  -     -     not-ready  no",
	} {
		if !strings.Contains(string(out), want) {
			t.Errorf("there is no %q in\n%s", want, out)
		}
	}
}
