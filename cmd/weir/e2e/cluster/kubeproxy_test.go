package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/weirlb/weir/cmd/weir/doctor"
	"github.com/weirlb/weir/discovery/kube/kubetest"
	"github.com/weirlb/weir/perf/netlab"
	"github.com/weirlb/weir/perf/netlab/labtest"
)

// kubeProxy starts the real kube-proxy on the edge node.
func (f *fixture) kubeProxy(mode string, more ...string) *netlab.Daemon {
	f.t.Helper()
	args := append([]string{"--kubeconfig=" + f.cluster.Kubeconfig, "--proxy-mode=" + mode, "--hostname-override=edge-1",
		"--cluster-cidr=10.40.0.0/16", "--bind-address=127.0.0.1", "--conntrack-max-per-core=0"}, more...)
	cmd := exec.Command(os.Getenv("KUBEPROXY_BIN"), args...)
	d, err := f.Edge.Edge.StartDaemon(cmd, f.path("kube-proxy-"+mode+".log"))
	if err != nil {
		f.t.Fatal(err)
	}
	return d
}

// examine is the report of `weir doctor`, and the exit status.
func (f *fixture) examine(args ...string) (r doctor.Report, exit int, err error) {
	cmd := exec.Command(f.binary, append([]string{"doctor", "-o", "json", "--config", f.path("config.yaml")}, args...)...)
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	p, err := f.Edge.Edge.Start(cmd)
	if err != nil {
		return r, 0, err
	}
	exit = p.ExitCode()
	if err := json.Unmarshal([]byte(out.String()), &r); err != nil {
		return r, exit, fmt.Errorf("exit status %d: %w: %s%s", exit, err, out.String(), errs.String())
	}
	return r, exit, nil
}

// agreements are those of a report's frontends: "web NodePort same 3".
func agreements(r *doctor.Report, mode string) (list []string) {
	for _, c := range r.KubeProxy {
		for _, f := range c.Frontends {
			_, name, _ := strings.Cut(f.Service, "/")
			if c.Mode == mode {
				list = append(list, fmt.Sprintf("%s %s %s %d", name, f.Kind, f.Agreement, len(f.Same)))
			}
		}
	}
	slices.Sort(list)
	return list
}

// comparedServices makes Services for each rule that kube-proxy and Weir have in common.
func (f *fixture) comparedServices() {
	f.t.Helper()
	f.runPod("here", "edge-1", "web", 101)
	f.runPod("same-zone", "node-a", "web", 102)
	f.runPod("far", "node-b", "web", 103)
	f.web("web")
	service := func(name string, edit func(*corev1.ServiceSpec)) *corev1.Service {
		return f.Service(name, func(s *corev1.Service) {
			s.Spec.Selector = map[string]string{"app": "web"}
			s.Spec.Ports[0].TargetPort = intstr.FromInt32(targetPort)
			edit(&s.Spec)
		})
	}
	near := corev1.ServiceTrafficDistributionPreferSameZone
	service("zone", func(s *corev1.ServiceSpec) { s.TrafficDistribution = &near })
	service("local", func(s *corev1.ServiceSpec) { s.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal })
	service("sticky", func(s *corev1.ServiceSpec) { s.SessionAffinity = corev1.ServiceAffinityClientIP })
	service("empty", func(s *corev1.ServiceSpec) { s.Selector = map[string]string{"app": "none"} })
	service("later", func(s *corev1.ServiceSpec) { s.Selector = map[string]string{"app": "later"} })
	service("external", func(s *corev1.ServiceSpec) { s.ExternalIPs = []string{netlab.Host4(netlab.LBNet, 9).String()} })
	ranged := service("ranged", func(s *corev1.ServiceSpec) {
		s.Type = corev1.ServiceTypeLoadBalancer
		s.LoadBalancerSourceRanges = []string{netip.PrefixFrom(netlab.Host4(netlab.ClientNet, 0), 24).String()}
	})
	ranged.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: netlab.Host4(netlab.LBNet, 10).String()}}
	if _, err := f.Site.Client.CoreV1().Services(f.Namespace).UpdateStatus(f.t.Context(), ranged, metav1.UpdateOptions{}); err != nil {
		f.t.Fatal(err)
	}
}

// The endpoints that the real kube-proxy programs are those that weir doctor --shadow expects:
// before Weir runs, and beside it. Where they differ, it says which and why.
func TestKubeWireDoctorComparesWithKubeProxy(t *testing.T) {
	if os.Getenv("KUBEPROXY_BIN") == "" {
		labtest.Skip(t, "KUBEPROXY_BIN is not set: run make test-kube, which builds kube-proxy")
	}
	f := newFixture(t, kubetest.Options{})
	f.comparedServices()
	same := []string{
		"empty NodePort same 0", "external ExternalIP same 3", "external NodePort same 3", "later NodePort same 0", "local NodePort same 1",
		"ranged LoadBalancer same 3", "ranged NodePort same 3", "sticky NodePort same 3", "web NodePort same 3", "zone NodePort same 2",
	}
	agree := func(what, mode string, args ...string) {
		t.Helper()
		f.Eventually(what, func(context.Context) error {
			r, exit, err := f.examine(append(args, "--shadow")...)
			if got := agreements(&r, mode); err == nil && (!slices.Equal(got, same) || exit != 0) {
				err = fmt.Errorf("exit status %d, %v, want 0, %v: %+v", exit, got, same, r)
			}
			return err
		})
	}
	proxy := f.kubeProxy("iptables")
	agree("iptables without Weir", "iptables", "--set", "externalIPs=true")
	f.kill(proxy)
	// A dead kube-proxy refuses what has an endpoint by now.
	f.runPod("late", "edge-1", "later", 104)
	f.Eventually("an endpoint that iptables refuses", func(context.Context) error {
		r, exit, err := f.examine("--shadow")
		if got := agreements(&r, "iptables"); err == nil && (!slices.Contains(got, "later NodePort different 0") || exit != 1) {
			err = fmt.Errorf("exit status %d, %v: %+v", exit, got, r)
		}
		return err
	})
	same[slices.Index(same, "later NodePort same 0")] = "later NodePort same 1"
	f.kubeProxyCleanup()
	proxy = f.kubeProxy("nftables")
	agree("nftables without Weir", "nftables", "--set", "externalIPs=true")
	f.start()
	// Weir does not serve external IPs by default.
	same = slices.DeleteFunc(same, func(s string) bool { return strings.Contains(s, "ExternalIP") })
	same = append([]string{"  only-kube-proxy 0"}, same...)
	agree("nftables beside Weir", "nftables")
	f.drainBesideKubeProxy()

	// The rules of a kube-proxy that is dead stay as they are.
	f.kill(proxy)
	f.Terminate("far")
	f.Eventually("the difference is named", func(context.Context) error {
		r, exit, err := f.examine()
		at := slices.IndexFunc(r.Findings, func(x doctor.Finding) bool {
			return x.Verdict == doctor.Fault && x.Subject == "kube-proxy (nftables)" &&
				strings.HasPrefix(x.Fact, "frontends for which it would choose other endpoints: ") &&
				strings.Contains(x.Mend, "delete pod -l k8s-app=kube-proxy --field-selector spec.nodeName=edge-1")
		})
		if err == nil && (at < 0 || exit != 1) {
			err = fmt.Errorf("exit status %d: %+v", exit, r.Findings)
		}
		return err
	})
	r, exit, err := f.examine("--shadow")
	want := doctor.Choice{Endpoint: netip.AddrPortFrom(netlab.Host4(netlab.ZoneBNet, 103), targetPort).String(),
		Reason: "terminating and serving: not used while an endpoint is ready"}
	at := slices.IndexFunc(r.KubeProxy[0].Frontends, func(c doctor.Compared) bool { return c.Agreement == doctor.Different })
	if err != nil || exit != 1 || at < 0 || !slices.Equal(r.KubeProxy[0].Frontends[at].OnlyKubeProxy, []doctor.Choice{want}) {
		t.Errorf("exit status %d, %v: %+v", exit, err, r)
	}
}

// drainBesideKubeProxy drains an endpoint of three Services: the difference to kube-proxy is the
// operator's, and no fault.
func (f *fixture) drainBesideKubeProxy() {
	f.t.Helper()
	far := []string{netlab.Host4(netlab.ZoneBNet, 103).String()}
	if _, err := f.admin.DrainEndpoints(f.t.Context(), far, false); err != nil {
		f.t.Fatal(err)
	}
	r, exit, err := f.examine("--shadow")
	want := []string{
		"  only-kube-proxy 0", "empty NodePort same 0", "external NodePort drained 2", "later NodePort same 1", "local NodePort same 1",
		"ranged LoadBalancer drained 2", "ranged NodePort drained 2",
		"sticky NodePort drained 2", "web NodePort drained 2", "zone NodePort same 2",
	}
	if got := agreements(&r, "nftables"); err != nil || exit != 0 || !slices.Equal(got, want) {
		f.t.Errorf("exit status %d, %v, %v, want %v: %+v", exit, err, got, want, r)
	}
	if _, err := f.admin.DrainEndpoints(f.t.Context(), far, true); err != nil {
		f.t.Fatal(err)
	}
}

func (f *fixture) kill(d *netlab.Daemon) {
	f.t.Helper()
	if err := d.Kill(); err != nil {
		f.t.Fatal(err)
	}
}

// kubeProxyCleanup removes the rules of every mode.
func (f *fixture) kubeProxyCleanup() {
	f.t.Helper()
	d, err := f.Edge.Edge.StartDaemon(exec.Command(os.Getenv("KUBEPROXY_BIN"), "--cleanup"), f.path("kube-proxy-cleanup.log"))
	if err != nil {
		f.t.Fatal(err)
	}
	<-d.Done()
}
