package controller

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weirlb/weir/discovery/addresspool"
	"github.com/weirlb/weir/perf/netlab/patience"
)

// A Service that waits for the address of another namespace does not get it when that is made again,
// nor from the controller that leads next.
func TestKubeAnAddressRestsForItsNamespace(t *testing.T) {
	b := newBed(t, poolYAML("p", "addresses: [192.0.2.0/24]"))
	lease := []string{"--lease", "rests", "--namespace", b.site.Namespace}
	kill := b.start(lease...)
	b.service("web", nil)
	b.eventually("web", "192.0.2.0 "+addresspool.ReasonAllocated)
	bank := b.site.Namespace
	evil, err := b.client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "evil-"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	asks := func(s *corev1.Service) { s.Annotations = map[string]string{"metallb.io/loadBalancerIPs": "192.0.2.0"} }
	b.site.Namespace = evil.Name
	b.service("camp", asks)
	camp := func(with string) {
		t.Helper()
		s := b.eventually("camp", addresspool.ReasonAddressInUse)
		for end := time.Now().Add(patience.For(20 * time.Second)); ; time.Sleep(20 * time.Millisecond) {
			c := meta.FindStatusCondition(s.Status.Conditions, condition)
			if strings.Contains(c.Message, bank) {
				t.Fatalf("the text has the name of another namespace: %s", c.Message)
			}
			if strings.Contains(c.Message, with) {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("the text is %s", c.Message)
			}
			_, s = b.state("camp")
		}
	}
	camp("a Service of another namespace has: annotation allow-shared-ip")
	if err := b.client.CoreV1().Services(bank).Delete(t.Context(), "web", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	camp("rests until")

	leases := b.client.CoordinationV1().Leases(bank)
	for end := time.Now().Add(patience.For(20 * time.Second)); ; time.Sleep(20 * time.Millisecond) {
		l, err := leases.Get(t.Context(), "rests", metav1.GetOptions{})
		if err == nil && strings.Contains(l.Annotations[annotationRests], "192.0.2.0") {
			kill()
			l.Spec.HolderIdentity = nil // the next need not wait
			_, err = leases.Update(t.Context(), l, metav1.UpdateOptions{})
			if err == nil {
				break
			}
		}
		if time.Now().After(end) {
			t.Fatalf("no record: %v", err)
		}
	}
	b.start(lease...)
	b.service("free", nil)
	b.eventually("free", "192.0.2.1 "+addresspool.ReasonAllocated) // the next leads
	camp("rests until")
	b.site.Namespace = bank
	b.service("again", asks)
	b.eventually("again", "192.0.2.0 "+addresspool.ReasonAllocated)
}
