package controller

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// Whoever may write pool objects in a namespace of their own can neither take a pool out of
// service, by a pool with the same name or the same addresses that comes first, nor add pools.
func TestPoolsOfOtherNamespacesDoNotCount(t *testing.T) {
	pool := func(namespace, name, addresses string) string {
		return `{"apiVersion":"metallb.io/v1beta1","kind":"IPAddressPool","metadata":{"namespace":"` + namespace + `","name":"` + name +
			`","resourceVersion":"1"},"spec":{"addresses":["` + addresses + `"]}}`
	}
	from := func(name, pool string) corev1.Service {
		s := plainService(name, 1, "")
		s.Annotations = map[string]string{"metallb.io/address-pool": pool}
		return s
	}
	for name, c := range map[string]struct {
		own        string
		namespaces []string
		evil       bool // its pools count
	}{
		"of MetalLB":    {own: "metallb-system"},
		"of a list":     {own: "infra", namespaces: []string{"infra", "infra2"}},
		"of all, asked": {own: "infra", namespaces: []string{"*"}, evil: true},
	} {
		t.Run(name, func(t *testing.T) {
			a := &apiServer{
				services: []corev1.Service{from("good", "public"), from("bad", "theirs")},
				pools:    []string{pool(c.own, "public", "198.51.100.1/32"), pool("evil", "theirs", "203.0.113.1/32")},
			}
			want := map[string]bool{"good 198.51.100.1 Allocated": true, "bad UnknownPool": true}
			if c.evil {
				want = map[string]bool{"good 198.51.100.1 Allocated": true, "bad 203.0.113.1 Allocated": true}
			} else { // these come first
				a.pools = append(a.pools, pool("a", "public", "203.0.113.9/32"), pool("evil", "a", "198.51.100.0/24"))
			}
			log := &watchedLog{text: "IPAddressPool evil/theirs", seen: make(chan struct{})}
			controls(t, a, log, c.namespaces...)
			for range want {
				if got := a.newWrite(t); !want[got] {
					t.Errorf("written: %s", got)
				}
			}
			select {
			case <-log.seen:
				if c.evil {
					t.Error("a pool that counts is reported")
				}
			default:
				if !c.evil {
					t.Error("the pools that do not count are not reported")
				}
			}
		})
	}
}
