package cluster

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/weirlb/weir/discovery/kube/kubetest"
	"github.com/weirlb/weir/perf/netlab"
)

// get asks as a load balancer in front does.
func (f *fixture) get(ctx context.Context, url string) (*http.Response, string, error) {
	c := &http.Client{Transport: &http.Transport{DialContext: f.Edge.Client.DialContext, DisableKeepAlives: true}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, "", err
	}
	res, err := c.Do(req)
	if err != nil {
		return nil, "", err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	return res, string(b), err
}

// The contract of healthCheckNodePort, and KEP-3836's of /healthz and /livez.
func TestKubeWireHealthChecksOfLoadBalancersInFront(t *testing.T) {
	f := newFixture(t, kubetest.Options{})
	f.runPod("here", "edge-1", "web", 101)
	f.runPod("there", "node-a", "web", 102)
	svc := f.Service("web", func(s *corev1.Service) {
		s.Spec.Type = corev1.ServiceTypeLoadBalancer
		s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
		s.Spec.Ports[0].TargetPort = intstr.FromInt32(targetPort)
	})
	f.start()
	node := netlab.Host4(netlab.ClientNet, 1)
	check := fmt.Sprintf("http://%s:%d/", node, svc.Spec.HealthCheckNodePort)
	expect := func(what, url string, status int, weight, body string) {
		t.Helper()
		f.Eventually(what, func(ctx context.Context) error {
			res, got, err := f.get(ctx, url)
			if err != nil {
				return err
			}
			if res.StatusCode != status || res.Header.Get("X-Load-Balancing-Endpoint-Weight") != weight || !strings.Contains(got, body) {
				return fmt.Errorf("%s, weight %q: %s", res.Status, res.Header.Get("X-Load-Balancing-Endpoint-Weight"), got)
			}
			return nil
		})
	}
	body := func(n int) string {
		return fmt.Sprintf("{\n\t\"service\": {\n\t\t\"namespace\": %q,\n\t\t\"name\": \"web\"\n\t},\n\t\"localEndpoints\": %d,\n\t\"serviceProxyHealthy\": true\n}", f.Site.Namespace, n)
	}
	expect("a ready Pod here", check, http.StatusOK, "1", body(1))
	f.SetReady("here", false)
	expect("none ready here", check, http.StatusServiceUnavailable, "0", body(0))
	f.SetReady("here", true)
	expect("ready again", check, http.StatusOK, "1", body(1))
	f.Terminate("here")
	expect("terminating", check, http.StatusServiceUnavailable, "0", body(0))

	healthz, livez := fmt.Sprintf("http://%s:9465/healthz", node), fmt.Sprintf("http://%s:9465/livez", node)
	expect("healthz", healthz, http.StatusOK, "", `"nodeEligible":true`)
	f.Eventually("taint", func(ctx context.Context) error {
		n, err := f.Site.Client.CoreV1().Nodes().Get(ctx, "edge-1", metav1.GetOptions{})
		if err != nil {
			return err
		}
		n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: "ToBeDeletedByClusterAutoscaler", Effect: corev1.TaintEffectNoSchedule})
		_, err = f.Site.Client.CoreV1().Nodes().Update(ctx, n, metav1.UpdateOptions{})
		return err
	})
	expect("healthz of a node that goes", healthz, http.StatusServiceUnavailable, "", `"nodeEligible":false`)
	expect("livez of a node that goes", livez, http.StatusOK, "", `"lastUpdated"`)
}

// A check takes an endpoint that the cluster calls ready out, and makes none ready that the cluster does not.
func TestKubeWireChecksDisagreeWithTheCluster(t *testing.T) {
	f := newFixture(t, kubetest.Options{})
	here, there := f.runPod("here", "edge-1", "web", 101), f.runPod("there", "node-a", "web", 102)
	target := f.web("web")
	f.EditService("web", func(s *corev1.Service) {
		s.Annotations = map[string]string{"weir.dev/health-check": "{tcpSocket: {port: 9100}, periodSeconds: 1, failureThreshold: 1, successThreshold: 1}"}
	})
	// answer has the check of a Pod pass until the function is called.
	answer := func(p *pod) (fail func()) {
		l, err := places[p.node].namespace(f).Listen("tcp", netip.AddrPortFrom(p.addr, 9100).String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		return func() { l.Close() }
	}
	failHere := answer(here)
	f.start()
	f.reaches("ready in both, one fails", target, "here")
	failThere := answer(there)
	f.reaches("both pass", target, "here", "there")
	f.SetReady("here", false)
	f.reaches("one passes that is not ready", target, "there")
	failThere()
	f.reaches("the ready one fails, the other is not ready: fail open", target, "there")
	f.SetReady("here", true)
	f.reaches("ready again", target, "here")
	failHere()
	f.reaches("both fail: fail open", target, "here", "there")
	f.EditService("web", func(s *corev1.Service) { s.Annotations["weir.dev/health-check-fail"] = "closed" })
	f.reaches("both fail: fail closed", target)
}

// Without a verb `weir run` ends with a line that says which, and `weir check`
// says the same.
func TestKubeWireMissingPermissionEndsTheStart(t *testing.T) {
	f := newFixture(t, kubetest.Options{Authz: "RBAC"})
	kubeconfig, _ := f.Account(f.cluster, "weir", nil)
	for _, command := range []string{"run", "check"} {
		out := &strings.Builder{}
		cmd := exec.Command(f.binary, command, "--config", f.path("config.yaml"), "--kubeconfig", kubeconfig)
		cmd.Stdout, cmd.Stderr = io.Discard, out
		p, err := f.Edge.Edge.Start(cmd)
		if err != nil {
			t.Fatal(err)
		}
		if code := p.ExitCode(); code != 1 {
			t.Errorf("weir %s: exit status %d", command, code)
		}
		for _, what := range []string{"list services", "watch services", "list endpointslices.discovery.k8s.io", "watch endpointslices.discovery.k8s.io", "list nodes", "watch nodes"} {
			line := fmt.Sprintf("kubernetes: system:serviceaccount:%s:weir may not %s: grant the verb in a ClusterRole\n", f.Site.Namespace, what)
			if !strings.Contains(out.String(), line) {
				t.Errorf("weir %s does not say %q but\n%s", command, line, out)
			}
		}
	}
}
