package charttest

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

// cluster is a real API server: the command kubeenv of discovery/kube.
type cluster struct {
	t      *testing.T
	client kubernetes.Interface
	any    dynamic.Interface
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	bin := os.Getenv("KUBEENV_BIN")
	if bin == "" {
		const why = "KUBEENV_BIN is not set: run make test-deploy, which builds the test cluster"
		if os.Getenv("CI") == "true" {
			t.Fatal(why)
		}
		t.Skip("skipped: ", why)
	}
	dir := t.TempDir()
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(bin, "-dir", dir, "-controllers=false", "-apiserver-args", "--allow-privileged=true")
	cmd.Stderr = log
	in, err := cmd.StdinPipe() // it ends when this does
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Wait()
		_ = log.Close()
	})
	var ready struct{ Kubeconfig string }
	if line, err := bufio.NewReader(out).ReadBytes('\n'); err != nil || json.Unmarshal(line, &ready) != nil {
		text, _ := os.ReadFile(log.Name())
		t.Fatalf("kubeenv: %v\n%s", err, text[max(0, len(text)-2000):])
	}
	go func() { _, _ = io.Copy(io.Discard, out) }()
	cfg, err := clientcmd.BuildConfigFromFlags("", ready.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	cfg.QPS = -1
	return &cluster{t, kubernetes.NewForConfigOrDie(cfg), dynamic.NewForConfigOrDie(cfg)}
}

// namespace makes the pods' namespace, with a level of Pod Security.
func (c *cluster) namespace(name, level string) {
	c.t.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"pod-security.kubernetes.io/enforce": level}}}
	if _, err := c.client.CoreV1().Namespaces().Create(c.t.Context(), ns, metav1.CreateOptions{}); err != nil {
		c.t.Fatal(err)
	}
}

// foreign are kinds that an operator beside Weir brings; this API server does
// not know them.
func foreign(o *unstructured.Unstructured) bool {
	return o.GroupVersionKind().Group == "monitoring.coreos.com"
}

// apply is `kubectl apply --server-side --validate=strict`.
func (c *cluster) apply(objects []*unstructured.Unstructured, dryRun ...string) error {
	for _, o := range objects {
		if foreign(o) {
			continue
		}
		data, err := o.MarshalJSON()
		if err != nil {
			return err
		}
		resource, _ := meta.UnsafeGuessKindToResource(o.GroupVersionKind())
		force := true
		_, err = c.any.Resource(resource).Namespace(o.GetNamespace()).Patch(c.t.Context(), o.GetName(), types.ApplyPatchType, data, metav1.PatchOptions{
			FieldManager: "test", Force: &force, FieldValidation: metav1.FieldValidationStrict, DryRun: dryRun,
		})
		if err != nil {
			return fmt.Errorf("%s %s: %w", o.GetKind(), o.GetName(), err)
		}
	}
	return nil
}

// remove deletes what apply has made, but namespaces.
func (c *cluster) remove(objects []*unstructured.Unstructured) {
	c.t.Helper()
	for _, o := range objects {
		if foreign(o) || o.GetKind() == "Namespace" {
			continue
		}
		resource, _ := meta.UnsafeGuessKindToResource(o.GroupVersionKind())
		if err := c.any.Resource(resource).Namespace(o.GetNamespace()).Delete(c.t.Context(), o.GetName(), metav1.DeleteOptions{}); err != nil {
			c.t.Errorf("%s %s: %v", o.GetKind(), o.GetName(), err)
		}
	}
}

func TestKubeTakesTheChart(t *testing.T) {
	c := newCluster(t)
	c.namespace(namespace, "privileged")
	for _, name := range []string{"metallb-system", "security", "other"} { // whose objects nodes may read
		c.namespace(name, "baseline")
	}
	for _, name := range slices.Sorted(maps.Keys(variants)) {
		t.Run(name, func(t *testing.T) {
			objects := mustTemplate(t, variants[name])
			if err := c.apply(objects, metav1.DryRunAll); err != nil {
				t.Fatalf("dry run: %v", err)
			}
			if err := c.apply(objects); err != nil {
				t.Fatal(err)
			}
			c.remove(objects)
		})
	}
	t.Run("one after the other, as upgrades", func(t *testing.T) {
		for _, name := range []string{"defaults", "everything", "privileged", "defaults"} {
			if err := c.apply(mustTemplate(t, variants[name])); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
	})
}

func TestKubeTakesTheKustomizeBase(t *testing.T) {
	c := newCluster(t)
	objects, err := kustomizeBuild(kustomizeDir)
	if err != nil {
		t.Fatal(err)
	}
	// The namespace must be there before the rest can be tried dry.
	if err := c.apply(objects[:1]); err != nil {
		t.Fatal(err)
	}
	if err := c.apply(objects, metav1.DryRunAll); err != nil {
		t.Fatalf("dry run: %v", err)
	}
	for range 2 { // the second time changes nothing
		if err := c.apply(objects); err != nil {
			t.Fatal(err)
		}
	}
}

// A pod of the DaemonSet is admitted by a namespace of the level that the
// documentation asks for, and by no stricter one.
func TestKubeAdmitsThePodWhereTheDocumentationSays(t *testing.T) {
	c := newCluster(t)
	ds := daemonSet(t, mustTemplate(t, ""))
	pod := &corev1.Pod{ObjectMeta: ds.Spec.Template.ObjectMeta, Spec: ds.Spec.Template.Spec}
	pod.Name, pod.Spec.NodeName = "weir-1", "edge-1"
	create := func(namespace string) error {
		// The priority class is made by the API server itself after its start.
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		for {
			_, err := c.client.CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{})
			if err == nil || !strings.Contains(err.Error(), "no PriorityClass") || ctx.Err() != nil {
				return err
			}
			time.Sleep(20 * time.Millisecond)
		}
	}
	for _, level := range []string{"privileged", "baseline", "restricted"} {
		c.namespace("weir-"+level, level)
		err := create("weir-" + level)
		switch {
		case level == "privileged" && err != nil:
			t.Errorf("%s: %v", level, err)
		case level != "privileged" && (err == nil || !strings.Contains(err.Error(), `violates PodSecurity "`+level)):
			t.Errorf("%s: %v", level, err)
		}
	}
}
