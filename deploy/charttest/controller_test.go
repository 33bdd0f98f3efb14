package charttest

import (
	"testing"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// The loss of a node, or its drain, leaves a controller; a scrape has all of them, and not those of the nodes.
func TestTheControllersOutliveANodeAndAreScraped(t *testing.T) {
	objects := mustTemplate(t, variants["controller"])
	d := decoded[*appsv1.Deployment](t, find(t, objects, "Deployment"))
	pods := labels.Set(d.Spec.Template.Labels)
	selects := func(s *metav1.LabelSelector) bool {
		selector, err := metav1.LabelSelectorAsSelector(s)
		return err == nil && selector.Matches(pods)
	}
	budget := decoded[*policyv1.PodDisruptionBudget](t, find(t, objects, "PodDisruptionBudget"))
	if !selects(budget.Spec.Selector) || budget.Spec.MaxUnavailable.IntValue() != 1 {
		t.Errorf("disruption budget %+v", budget.Spec)
	}
	spread := d.Spec.Template.Spec.TopologySpreadConstraints
	if len(spread) != 1 || spread[0].TopologyKey != corev1.LabelHostname || !selects(spread[0].LabelSelector) {
		t.Errorf("spread over nodes %+v", spread)
	}
	c := &d.Spec.Template.Spec.Containers[0]
	for _, p := range []*corev1.Probe{c.LivenessProbe, c.ReadinessProbe} {
		if p == nil || p.HTTPGet.Path != "/healthz" {
			t.Errorf("probe %+v", p)
		}
	}
	// Each ServiceMonitor takes a single Service, and one of these selects the controllers.
	var scraped int
	for _, o := range objects {
		if o.GetKind() != "ServiceMonitor" {
			continue
		}
		m := decoded[*monitoringv1.ServiceMonitor](t, o)
		selector, err := metav1.LabelSelectorAsSelector(&m.Spec.Selector)
		if err != nil {
			t.Fatal(err)
		}
		var services int
		for _, s := range objects {
			if s.GetKind() == "Service" && selector.Matches(labels.Set(s.GetLabels())) {
				services++
				if labels.SelectorFromSet(decoded[*corev1.Service](t, s).Spec.Selector).Matches(pods) {
					scraped++
				}
			}
		}
		if services != 1 {
			t.Errorf("ServiceMonitor %s selects %d Services", m.Name, services)
		}
	}
	if scraped != 1 {
		t.Errorf("the controllers are scraped %d times", scraped)
	}
}
