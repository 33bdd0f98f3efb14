package manifest

import (
	"bufio"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/weirlb/weir/discovery/kube/kubetest"
)

var update = flag.Bool("update", false, "write the answers of the API server")

// answersFile has an answer per line: the variant, a tab, and "accepted" or the fields refused.
const answersFile = "testdata/apiserver.txt"

const accepted = "accepted"

// answers are those of the file.
func answers(t *testing.T) map[string]string {
	t.Helper()
	f, err := os.Open(answersFile)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	out := map[string]string{}
	for s := bufio.NewScanner(f); s.Scan(); {
		name, answer, ok := strings.Cut(s.Text(), "\t")
		if !ok {
			t.Fatalf("%q has no answer", s.Text())
		}
		out[name] = answer
	}
	return out
}

// milder are variants that an API server refuses and Weir takes without a word, by the beginning of
// the name, with the reason.
var milder = map[string]string{
	"node spec.podCIDR": "Weir does not read the addresses of Pods",
}

// stricter are variants that an API server accepts and Weir refuses or warns of.
var stricter = map[string]string{
	"endpoints subsets.0.addresses.0.ip=\"239.":              "no endpoint has a multicast address",
	"endpoints subsets.0.addresses.0.ip=\"ff0e":              "no endpoint has a multicast address",
	"endpoints subsets.0.addresses.0.ip=\"255.255.255.255\"": "no endpoint has the broadcast address",
	"slice endpoints.0.addresses=[\"239.":                    "no endpoint has a multicast address",
	"slice endpoints.0.addresses=[\"255.255.255.255\"":       "no endpoint has the broadcast address",
	"slice6 endpoints.0.addresses=[\"ff0e":                   "no endpoint has a multicast address",
	"external spec.externalIPs=[\"239.":                      "a multicast address has no connections",
	"external spec.externalIPs=[\"ff0e":                      "a multicast address has no connections",
	"external spec.externalIPs=[\"255.255.255.255\"":         "the broadcast address has no connections",
	"slice ports.0.port=0":                                   "there is no such port",
	"slice ports.0.port=-1":                                  "there is no such port",
	"slice ports.0.port=65536":                               "there is no such port",
	"loadbalancer spec.ports.0.nodePort=-1":                  "there is no such port: the API server says so when the Service is stored",
	"loadbalancer spec.ports.0.nodePort=65536":               "there is no such port: the API server says so when the Service is stored",
	"nodeport spec.ports.0.nodePort=-1":                      "there is no such port: the API server says so when the Service is stored",
	"nodeport spec.ports.0.nodePort=65536":                   "there is no such port: the API server says so when the Service is stored",
}

// Weir refuses, or warns of, the objects that an API server refuses, and no others.
func TestManifestsAreJudgedAsByAnAPIServer(t *testing.T) {
	all, recorded := variants(t), answers(t)
	if len(all) < 189 {
		t.Fatalf("%d variants", len(all))
	}
	if !slices.Equal(names(all), slices.Sorted(maps.Keys(recorded))) {
		t.Fatal("the answers are of other variants: record them with a real API server, see TestKubeAnswersToManifests")
	}
	for _, name := range names(all) {
		said := judge(t, all[name].object)
		answer := recorded[name]
		if answer == accepted {
			if len(said) > 0 && listed(stricter, name) == "" {
				t.Errorf("%s is accepted by an API server, Weir says %q", name, said)
			}
			continue
		}
		if len(said) == 0 && listed(milder, name) == "" {
			t.Errorf("%s is refused by an API server: %s; Weir says nothing", name, answer)
		}
		if len(said) > 0 && listed(milder, name) != "" {
			t.Errorf("%s is judged, in spite of %q: %q", name, listed(milder, name), said)
		}
	}
}

// listed is the reason in m for the longest entry that name begins with.
func listed(m map[string]string, name string) (reason string) {
	best := -1
	for prefix, why := range m {
		if strings.HasPrefix(name, prefix) && len(prefix) > best {
			best, reason = len(prefix), why
		}
	}
	return reason
}

// judge are the errors and warnings of an object in a manifest.
func judge(t *testing.T, object map[string]any) (out []string) {
	t.Helper()
	text, err := json.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	report, err := newSource("").LoadFiles([]string{"-"}, strings.NewReader(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	for i := range report.Errors {
		out = append(out, "error: "+report.Errors[i].Error())
	}
	for i := range report.Warnings {
		out = append(out, "warning: "+report.Warnings[i].Error())
	}
	return out
}

// The recorded answers are those of a real API server. With -update they are written.
func TestKubeAnswersToManifests(t *testing.T) {
	c := kubetest.Require(t, kubetest.Options{NoControllers: true, Fast: true})
	cfg := c.REST(t)
	cfg.ContentType = ""
	client, err := dynamic.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	all := variants(t)
	got := make(map[string]string, len(all))
	for _, name := range names(all) {
		got[name] = ask(t, client, all[name])
	}
	if *update {
		var b strings.Builder
		for _, name := range names(all) {
			b.WriteString(name + "\t" + got[name] + "\n")
		}
		if err := os.WriteFile(answersFile, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	recorded := answers(t)
	for _, name := range names(all) {
		if got[name] != recorded[name] {
			t.Errorf("%s: the API server says %q, recorded is %q", name, got[name], recorded[name])
		}
	}
}

// ask is the API server's answer to a variant, without storing it.
func ask(t *testing.T, client dynamic.Interface, v variant) string {
	t.Helper()
	o := &unstructured.Unstructured{Object: v.object}
	r := client.Resource(resources[o.GetKind()])
	in := dynamic.ResourceInterface(r)
	if namespace := o.GetNamespace(); namespace != "" {
		in = r.Namespace(namespace)
	}
	var err error
	if v.status {
		err = askStatus(t, in, o)
	} else {
		_, err = in.Create(t.Context(), o, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}, FieldValidation: metav1.FieldValidationStrict})
	}
	var status *apierrors.StatusError
	switch {
	case err == nil:
		return accepted
	case !errors.As(err, &status):
		t.Fatalf("%s: %v", v.name, err)
	}
	var fields []string
	if d := status.ErrStatus.Details; d != nil {
		for _, cause := range d.Causes {
			fields = append(fields, cause.Field)
		}
	}
	if fields = slices.Compact(fields); len(fields) > 4 {
		fields = append(fields[:4], "...")
	}
	return strings.TrimSpace(fmt.Sprintf("%s %s", status.ErrStatus.Reason, strings.Join(fields, " ")))
}

// askStatus stores the object without the status for as long as it takes to ask about the status.
func askStatus(t *testing.T, in dynamic.ResourceInterface, o *unstructured.Unstructured) error {
	t.Helper()
	plain := o.DeepCopy()
	unstructured.RemoveNestedField(plain.Object, "status")
	stored, err := in.Create(t.Context(), plain, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := in.Delete(t.Context(), o.GetName(), metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}()
	stored.Object["status"] = o.Object["status"]
	_, err = in.UpdateStatus(t.Context(), stored, metav1.UpdateOptions{DryRun: []string{metav1.DryRunAll}, FieldValidation: metav1.FieldValidationStrict})
	return err
}

var resources = map[string]schema.GroupVersionResource{
	"Service":       {Version: "v1", Resource: "services"},
	"Endpoints":     {Version: "v1", Resource: "endpoints"},
	"Node":          {Version: "v1", Resource: "nodes"},
	"EndpointSlice": {Group: "discovery.k8s.io", Version: "v1", Resource: "endpointslices"},
}
