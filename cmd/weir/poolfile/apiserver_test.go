package poolfile

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/weirlb/weir/discovery/addresspool"
	"github.com/weirlb/weir/discovery/kube"
	"github.com/weirlb/weir/discovery/kube/kubetest"
)

// Every example of MetalLB's documentation, applied to an API server with MetalLB's definitions, does
// on a node as it says, or is refused with the field.
func TestKubeMetalLBExamples(t *testing.T) {
	archive, err := txtar.ParseFile("testdata/metallb.txtar")
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for _, f := range archive.Files {
		files[f.Name] = string(f.Data)
	}
	c := kubetest.Require(t, kubetest.Options{NoControllers: true})
	apply := c.Applier(t)
	apply.MetalLB()
	apply.All("{apiVersion: v1, kind: Secret, metadata: {namespace: metallb-system, name: secretname}, type: kubernetes.io/basic-auth, stringData: {password: key}}")
	watch, err := kube.NewPoolObjects(kube.PoolConfig{
		REST: c.REST(t), Namespaces: []string{"metallb-system"}, Secrets: []string{"secretname"}, Changed: func() {}, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := watch.Look(t.Context()); err != nil || !watch.Synced() {
		t.Fatal(err)
	}
	for _, e := range examples {
		t.Run(e.name, func(t *testing.T) {
			var applied []*unstructured.Unstructured
			for _, f := range e.files {
				for _, o := range apply.Objects(files[f]) {
					if group, _, _ := strings.Cut(o.GetAPIVersion(), "/"); group != addresspool.GroupMetalLB {
						continue // a Deployment, or of FRR's own definitions
					}
					if err := apply.Apply(o); err != nil {
						t.Fatalf("%s %s: %v", o.GetKind(), o.GetName(), err)
					}
					applied = append(applied, o)
				}
			}
			objects := untilListed(t, watch, applied)
			e.checkListed(t, objects, watch)
			for _, o := range applied {
				apply.Delete(o)
			}
			untilListed(t, watch, nil)
		})
	}
}

// untilListed waits until these objects are known, and no others.
func untilListed(t *testing.T, watch *kube.PoolObjects, applied []*unstructured.Unstructured) (out []addresspool.Object) {
	t.Helper()
	var want []string
	for _, o := range applied {
		want = append(want, o.GetKind()+" "+o.GetName())
	}
	slices.Sort(want)
	want = slices.Compact(want)
	err := kubetest.Poll(t.Context(), func(context.Context) error {
		list, err := watch.Objects()
		if err != nil {
			return err
		}
		var got []string
		out = nil
		for _, o := range list {
			got = append(got, o.Kind+" "+o.Name)
			out = append(out, addresspool.Object{JSON: o.JSON})
		}
		if slices.Sort(got); !slices.Equal(got, want) {
			return fmt.Errorf("%v are listed, want %v", got, want)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// checkListed compares the outcome on a node with that of the example. An object with the name of
// another has replaced it. The definitions of MetalLB have a default of the port.
func (e *example) checkListed(t *testing.T, objects []addresspool.Object, watch *kube.PoolObjects) {
	t.Helper()
	n := addresspool.Node{Name: "node-1", Links: true, Labels: map[string]string{"rack": "frontend"}, Secret: watch.Secret}
	if e.node != "" {
		n.Name = e.node
	}
	want := outcome{e.peers, e.routes, e.faults}
	if e.listed != nil {
		want = *e.listed
	}
	want.faults = slices.DeleteFunc(slices.Clone(want.faults), func(f string) bool { return strings.HasPrefix(f, "FRRConfiguration ") })
	want.faults = slices.Compact(want.faults)
	got, pools := outcomeOf(objects, n)
	plain := func(peers []string) (out []string) {
		for _, p := range peers {
			out = append(out, strings.Replace(p, " port 179", "", 1))
		}
		return out
	}
	if pools != e.pools || !slices.Equal(plain(got.peers), plain(want.peers)) || !slices.Equal(got.routes, want.routes) {
		t.Errorf("%d pools, %+v, want %d, %+v", pools, got, e.pools, want)
	}
	if !slices.EqualFunc(got.faults, want.faults, strings.HasPrefix) {
		t.Errorf("faults %q, want %q", got.faults, want.faults)
	}
}
