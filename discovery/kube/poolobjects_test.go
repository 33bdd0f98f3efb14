package kube_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/weirlb/weir/discovery/kube"
	"github.com/weirlb/weir/discovery/kube/kubetest"
)

// poolNames are the objects as kind namespace/name.
func poolNames(t *testing.T, p *kube.PoolObjects) (out []string) {
	t.Helper()
	list, err := p.Objects()
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range list {
		out = append(out, o.Kind+" "+o.Namespace+"/"+o.Name)
	}
	slices.Sort(out)
	return out
}

// Definitions that are not installed are no error, and are found later. Objects of the chosen
// namespaces and the named Secrets alone are read, with the rights that Weir asks for; those that are
// known stay while the API server is away.
func TestKubePoolObjects(t *testing.T) {
	c := kubetest.Require(t, kubetest.Options{Authz: "RBAC"})
	s := kubetest.NewSite(t, c.Client(t))
	apply := c.Applier(t)
	rules := func(without string) (out []rbacv1.PolicyRule) {
		for name, verbs := range kube.Allowances(kube.Config{ObjectNamespaces: []string{"metallb-system"}, ObjectSecrets: []string{"key"}}) {
			group, resource, ok := strings.Cut(name, "/")
			if !ok {
				group, resource = "", name
			}
			if resource != without {
				out = append(out, rbacv1.PolicyRule{APIGroups: []string{group}, Resources: []string{resource}, Verbs: verbs})
			}
		}
		return out
	}
	file, set := s.Account(c, "weir", rules("communities"))
	rc, err := kube.ClientConfig(file)
	if err != nil {
		t.Fatal(err)
	}
	changes := make(chan struct{}, 1)
	p, err := kube.NewPoolObjects(kube.PoolConfig{
		REST: rc, Namespaces: []string{"metallb-system"}, Secrets: []string{"key"}, Log: slog.New(slog.DiscardHandler),
		Changed: func() {
			select {
			case changes <- struct{}{}:
			default:
			}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	look := func() error { return p.Look(t.Context()) }
	if err := look(); err != nil || !p.Synced() || len(poolNames(t, p)) != 0 || len(p.Faults()) != 0 {
		t.Fatalf("without definitions: %v, synced %v, %v, %v", err, p.Synced(), poolNames(t, p), p.Faults())
	}
	apply.MetalLB()
	apply.Namespace("other")
	const objects = `{apiVersion: metallb.io/v1beta1, kind: IPAddressPool, metadata: {namespace: %[1]s, name: public}, spec: {addresses: [192.0.2.0/24]}}
---
{apiVersion: metallb.io/v1beta2, kind: BGPPeer, metadata: {namespace: %[1]s, name: edge, labels: {a: b}}, spec: {myASN: 1, peerASN: 2, peerAddress: 192.0.2.1, password: in-the-clear}}
---
{apiVersion: v1, kind: Secret, metadata: {namespace: %[1]s, name: key}, type: kubernetes.io/basic-auth, stringData: {password: the-password}}
---
{apiVersion: v1, kind: Secret, metadata: {namespace: %[1]s, name: other}, stringData: {password: unread}}
`
	apply.All(fmt.Sprintf(objects, "metallb-system") + "---\n" + fmt.Sprintf(objects, "other"))
	if err := look(); err != nil {
		t.Fatal(err)
	}
	want := []string{"BGPPeer metallb-system/edge", "IPAddressPool metallb-system/public"}
	s.Eventually("objects of a namespace", func(context.Context) error {
		if got := poolNames(t, p); !slices.Equal(got, want) {
			return fmt.Errorf("%v, want %v", got, want)
		}
		return nil
	})
	if list, _ := p.Objects(); string(list[0].JSON) != `{"apiVersion":"metallb.io/v1beta1","kind":"IPAddressPool","metadata":{"name":"public","namespace":"metallb-system"},"spec":{"addresses":["192.0.2.0/24"],"autoAssign":true,"avoidBuggyIPs":false}}` ||
		strings.Contains(string(list[1].JSON), "in-the-clear") || !strings.Contains(string(list[1].JSON), `"labels":{"a":"b"}`) {
		t.Errorf("%s\n%s", list[0].JSON, list[1].JSON)
	}
	for _, x := range [][3]string{
		{"metallb-system", "key", "the-password"}, {"metallb-system", "other", ""}, {"other", "key", ""}, {"metallb-system", "absent", ""},
	} {
		s.Eventually("the Secret "+x[0]+"/"+x[1], func(context.Context) error {
			if password, err := p.Secret(x[0], x[1]); password != x[2] || (err == nil) != (x[2] != "") {
				return fmt.Errorf("%q, %v", password, err)
			}
			return nil
		})
	}

	// A kind that may not be listed is a fault, and stands in no other's way.
	forbidden := func() bool {
		return slices.ContainsFunc(p.Faults(), func(f kube.Fault) bool {
			return f.Resource == "communities.metallb.io of metallb-system" && strings.HasPrefix(f.Reason, "403")
		})
	}
	if !forbidden() || !p.Synced() {
		t.Errorf("faults %v, synced %v", p.Faults(), p.Synced())
	}
	set(rules(""))
	s.Eventually("the right is granted", func(context.Context) error {
		if forbidden() {
			return errors.New("still a fault")
		}
		return nil
	})

	before := p.SecretVersions()
	c.Stop()
	s.Eventually("faults without an API server", func(context.Context) error {
		if len(p.Faults()) < 2 {
			return fmt.Errorf("%v", p.Faults())
		}
		return nil
	})
	if got := poolNames(t, p); !slices.Equal(got, want) || look() == nil {
		t.Errorf("without an API server: %v", got)
	}
	if err := c.Restart(); err != nil {
		t.Fatal(err)
	}
	apply = c.Applier(t)
	apply.All(`{apiVersion: v1, kind: Secret, metadata: {namespace: metallb-system, name: key}, type: kubernetes.io/basic-auth, stringData: {password: another}}`)
	s.Eventually("another password", func(context.Context) error {
		if password, err := p.Secret("metallb-system", "key"); err != nil || password != "another" {
			return fmt.Errorf("%q, %v", password, err)
		}
		return nil
	})
	if before == "" || p.SecretVersions() == before {
		t.Error("a change of a Secret is not seen")
	}
	select {
	case <-changes:
	default:
		t.Error("no change was told")
	}
}
