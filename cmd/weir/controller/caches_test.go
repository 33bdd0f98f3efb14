package controller

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weirlb/weir/discovery/kube/kubetest"
	"github.com/weirlb/weir/perf/netlab/patience"
)

// withoutNamespaces are rights of a controller that may not list namespaces.
var withoutNamespaces = []rbacv1.PolicyRule{
	{APIGroups: []string{""}, Resources: []string{"services"}, Verbs: []string{"list", "watch"}},
	{APIGroups: []string{""}, Resources: []string{"services/status"}, Verbs: []string{"update"}},
	{APIGroups: []string{""}, Resources: []string{"events"}, Verbs: []string{"create"}},
	{APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}, Verbs: []string{"create", "get", "update"}},
}

// freeAddress is one that nobody listens on.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// untilHealth waits for an answer of /healthz.
func untilHealth(t *testing.T, address string, want int) {
	t.Helper()
	var got string
	for end := time.Now().Add(patience.For(30 * time.Second)); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		res, err := http.Get("http://" + address + "/healthz")
		if err != nil {
			got = err.Error()
			continue
		}
		body, _ := io.ReadAll(res.Body)
		res.Body.Close()
		if res.StatusCode == want {
			return
		}
		got = fmt.Sprint(res.StatusCode, " ", string(body))
	}
	t.Fatalf("/healthz: %s, want %d", got, want)
}

// A controller that may not read what it needs does not stand for the Lease, and fails its probe. The
// other allocates.
func TestKubeAControllerWithoutRightsDoesNotLead(t *testing.T) {
	b := newBedOf(t, kubetest.Options{Authz: "RBAC", NoControllers: true, NoEndpoints: true}, poolYAML("p", "addresses: [192.0.2.1-192.0.2.2]"))
	kubeconfig, _ := b.site.Account(b.cluster, "limited", withoutNamespaces)
	first, second := freeAddress(t), freeAddress(t)
	b.start("--kubeconfig", kubeconfig, "--namespace", b.site.Namespace, "--identity", "first", "--metrics-address", first)
	untilHealth(t, first, http.StatusServiceUnavailable)
	b.start("--namespace", b.site.Namespace, "--identity", "second", "--metrics-address", second)
	b.service("one", nil)
	b.eventually("one", "192.0.2.1 Allocated")
	untilHealth(t, second, http.StatusOK)
	lease, err := b.client.CoordinationV1().Leases(b.site.Namespace).Get(t.Context(), "weir-controller", metav1.GetOptions{})
	if err != nil || *lease.Spec.HolderIdentity != "second" {
		t.Errorf("lease %+v, %v", lease.Spec, err)
	}
}
