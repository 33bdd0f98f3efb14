package manifest

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirlb/weir/discovery"
)

// dir is a directory of manifests under test.
type dir struct {
	t    *testing.T
	path string
	src  *Source
}

func newDir(t *testing.T) *dir {
	t.Helper()
	path := t.TempDir()
	return &dir{t: t, path: path, src: newSource(path)}
}

func newSource(path string) *Source {
	return New(Config{
		Path: path, Shorter: time.Nanosecond,
		Store: discovery.Options{NodeName: "edge-1"},
		Log:   slog.New(slog.DiscardHandler),
	})
}

func (d *dir) write(name, text string) {
	d.t.Helper()
	// By rename, as an editor does.
	tmp := filepath.Join(d.path, "."+name+".tmp")
	if err := os.WriteFile(tmp, []byte(text), 0o644); err != nil {
		d.t.Fatal(err)
	}
	if err := os.Rename(tmp, filepath.Join(d.path, name)); err != nil {
		d.t.Fatal(err)
	}
}

func (d *dir) remove(name string) {
	d.t.Helper()
	if err := os.Remove(filepath.Join(d.path, name)); err != nil {
		d.t.Fatal(err)
	}
}

// load loads and flushes; the errors come without the directory.
func (d *dir) load() []string {
	d.t.Helper()
	report, err := d.src.Load()
	if err != nil {
		d.t.Fatal(err)
	}
	d.src.Flush()
	var out []string
	for _, e := range report.Errors {
		out = append(out, strings.TrimPrefix(e.Error(), d.path+"/"))
	}
	return out
}

// served is "default/web 80 10.1.1.1:8080 ..." per Service port.
func (d *dir) served() []string { return serves(d.src) }

func serves(src *Source) []string {
	var out []string
	for _, svc := range src.Services() {
		if len(svc.Ports) == 0 {
			out = append(out, svc.Name.String())
		}
		for _, p := range svc.Ports {
			line := fmt.Sprintf("%s %d", svc.Name, p.Port)
			for _, e := range p.Endpoints {
				line += " " + e.AddrPort.String()
			}
			out = append(out, line)
		}
	}
	return out
}

func (d *dir) expect(want ...string) {
	d.t.Helper()
	if got := d.served(); !slices.Equal(got, want) {
		d.t.Fatalf("served:\n got %q\nwant %q", got, want)
	}
}

func (d *dir) expectErrors(want ...string) {
	d.t.Helper()
	got := d.load()
	if len(got) != len(want) {
		d.t.Fatalf("errors:\n got %q\nwant %q", got, want)
	}
	for i := range want {
		if !strings.Contains(got[i], want[i]) {
			d.t.Errorf("error %d:\n got %q\nwant %q", i, got[i], want[i])
		}
	}
}

func service(name string, port int) string {
	return fmt.Sprintf("---\napiVersion: v1\nkind: Service\nmetadata: {name: %s}\nspec: {ports: [{port: %d}]}\n", name, port)
}

func slice(name, service string, addrs ...string) string {
	text := fmt.Sprintf("---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n"+
		"metadata: {name: %s, labels: {kubernetes.io/service-name: %s}}\n"+
		"addressType: IPv4\nports: [{name: \"\", port: 8080}]\nendpoints:\n", name, service)
	for _, a := range addrs {
		text += fmt.Sprintf("- addresses: [%q]\n", a)
	}
	return text
}

func TestMalformedDocumentKeepsItsObjectAndNothingElse(t *testing.T) {
	d := newDir(t)
	d.write("a.yaml", service("web", 80)+slice("web-1", "web", "10.1.1.1"))
	d.write("b.yaml", service("api", 81))
	d.expectErrors()
	d.expect("default/api 81", "default/web 80 10.1.1.1:8080")

	// The slice is malformed, its Service changes, another file too.
	d.write("a.yaml", service("web", 8000)+slice("web-1", "web", "10.1.1.2", "10.1.1.x"))
	d.write("b.yaml", service("api", 82))
	d.expectErrors("a.yaml: document 2 (line 7): EndpointSlice default/web-1: endpoints[1].addresses[0]: " +
		`Invalid value: "10.1.1.x": must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff) (it stays as last served)`)
	d.expect("default/api 82", "default/web 8000 10.1.1.1:8080")

	// The error stays as long as the document does, and its object too.
	d.expectErrors("EndpointSlice default/web-1")
	d.expect("default/api 82", "default/web 8000 10.1.1.1:8080")

	d.write("a.yaml", service("web", 8000)+slice("web-1", "web", "10.1.1.2"))
	d.expectErrors()
	d.expect("default/api 82", "default/web 8000 10.1.1.2:8080")
}

func TestMalformedDocumentAtStartLeavesTheRestServed(t *testing.T) {
	d := newDir(t)
	d.write("a.yaml", service("web", 0)+service("api", 81)+"---\nkind: [Service\n")
	d.expectErrors(
		"a.yaml: document 1 (line 2): Service default/web: spec.ports[0].port: Invalid value: 0: must be between 1 and 65535, inclusive",
		"a.yaml: document 3 (line 12): not YAML: line 13")
	d.expect("default/api 81")
}

func TestDocumentThatHidesItsNameKeepsWhatItsFileServed(t *testing.T) {
	d := newDir(t)
	d.write("a.yaml", service("web", 80)+service("api", 81))
	d.write("b.yaml", service("other", 82))
	d.expectErrors()

	d.write("a.yaml", service("web", 8000)+"---\napiVersion: v1\nkind: Service\nmetadata: {name: api\n")
	d.remove("b.yaml")
	d.expectErrors("a.yaml: document 2 (line 7): not YAML:")
	d.expect("default/api 81", "default/web 8000")

	// Not text at all: every object of the file stays.
	d.write("a.yaml", "\x00\x01garbage")
	d.expectErrors("a.yaml: not text: a zero byte at offset 0 (what is served from this file stays)")
	d.expect("default/api 81", "default/web 8000")

	d.write("a.yaml", service("api", 83))
	d.expectErrors()
	d.expect("default/api 83")
}

func TestFirstOfTwoDocumentsCounts(t *testing.T) {
	d := newDir(t)
	d.write("a.yaml", service("web", 80)+service("web", 81))
	d.write("b.yaml", service("web", 82))
	d.expectErrors(
		`a.yaml: document 2 (line 7): Service default/web: metadata.name: Duplicate value: "web": already described by document 1`,
		`b.yaml: document 1 (line 2): Service default/web: metadata.name: Duplicate value: "web": already described by `)
	d.expect("default/web 80")

	// When the first goes the next takes over.
	d.write("a.yaml", service("api", 79))
	d.expectErrors()
	d.expect("default/api 79", "default/web 82")

	// And when the first comes back, malformed, what is served stays.
	d.write("a.yaml", service("web", 0))
	d.expectErrors("a.yaml: document 1", "b.yaml: document 1")
	d.expect("default/web 82")
}

func TestUnreadableFileKeepsItsObjects(t *testing.T) {
	d := newDir(t)
	d.write("a.yaml", service("web", 80))
	d.expectErrors()
	d.remove("a.yaml")
	if err := os.Symlink("nowhere", filepath.Join(d.path, "a.yaml")); err != nil {
		t.Fatal(err)
	}
	d.expectErrors("a.yaml: stat: no such file or directory (what is served from this file stays)")
	d.expect("default/web 80")
	d.remove("a.yaml")
	d.expectErrors()
	d.expect()
}

func TestMissingPathKeepsEverything(t *testing.T) {
	d := newDir(t)
	d.write("a.yaml", service("web", 80))
	d.expectErrors()
	if err := os.Rename(d.path, d.path+".away"); err != nil {
		t.Fatal(err)
	}
	if _, err := d.src.Load(); err == nil || !strings.Contains(err.Error(), "no such file or directory") {
		t.Fatalf("Load: %v", err)
	}
	d.expect("default/web 80")
}

func TestDirectoryRules(t *testing.T) {
	d := newDir(t)
	d.write("2.yml", service("two", 2))
	d.write("1.yaml", service("one", 1))
	d.write("3.json", `{"apiVersion":"v1","kind":"Service","metadata":{"name":"three"},"spec":{"ports":[{"port":3}]}}`)
	d.write(".hidden.yaml", service("hidden", 4))
	d.write("notes.txt", "not a manifest")
	if err := os.MkdirAll(filepath.Join(d.path, "sub.yaml"), 0o755); err != nil {
		t.Fatal(err)
	}
	d.expectErrors()
	d.expect("default/one 1", "default/three 3", "default/two 2")
	if got := d.src.Report().Files; got != 3 {
		t.Errorf("%d files", got)
	}
}

func TestForms(t *testing.T) {
	const list = `{"apiVersion":"v1","kind":"List","metadata":{"resourceVersion":""},"items":[
		{"apiVersion":"v1","kind":"Service","metadata":{"name":"web","namespace":"shop","futureField":1},"spec":{"ports":[{"port":80,"appProtocol2":"x"}]},"future":{}},
		{"apiVersion":"discovery.k8s.io/v1beta1","kind":"EndpointSlice","metadata":{"name":"s","namespace":"shop","labels":{"kubernetes.io/service-name":"web"}},
		 "addressType":"IPv4","ports":[{"port":8080}],"endpoints":[{"addresses":["10.1.1.1"],"topology":{"kubernetes.io/hostname":"n1"}}]}]}`
	const typed = `{"apiVersion":"v1","kind":"ServiceList","items":[{"metadata":{"name":"web","namespace":"shop"},"spec":{"ports":[{"port":80}]}}]}`
	const single = `{"apiVersion":"v1","kind":"Service","metadata":{"name":"web"},"spec":{"ports":[{"port":80}]}}`
	for name, c := range map[string]struct {
		file, text string
		want       []string
	}{
		"JSON List":                    {"a.json", list, []string{"shop/web 80 10.1.1.1:8080"}},
		"JSON List in a YAML file":     {"a.yaml", list, []string{"shop/web 80 10.1.1.1:8080"}},
		"typed List without item type": {"a.json", typed, []string{"shop/web 80"}},
		"several JSON texts":           {"a.json", single + strings.ReplaceAll(single, "web", "api"), []string{"default/api 80", "default/web 80"}},
		"JSON between markers":         {"a.yaml", "---\n" + single + "\n---\n" + strings.ReplaceAll(single, "web", "api"), []string{"default/api 80", "default/web 80"}},
		"YAML flow mapping":            {"a.yaml", "{apiVersion: v1, kind: Service, metadata: {name: web}, spec: {ports: [{port: 80}]}}", []string{"default/web 80"}},
		"YAML List":                    {"a.yaml", "apiVersion: v1\nkind: List\nitems:\n- apiVersion: v1\n  kind: Service\n  metadata: {name: web}\n  spec: {ports: [{port: 80}]}\n", []string{"default/web 80"}},
		"byte order mark and CRLF":     {"a.yaml", "\xef\xbb\xbf" + strings.ReplaceAll(service("web", 80)+service("api", 81), "\n", "\r\n"), []string{"default/api 81", "default/web 80"}},
		"comments, directives, ends":   {"a.yaml", "# a comment\n%YAML 1.2\n" + service("web", 80) + "...\n# more\n---\n---\n# nothing\n" + service("api", 81), []string{"default/api 81", "default/web 80"}},
		"marker with content":          {"a.yaml", "--- {apiVersion: v1, kind: Service, metadata: {name: web}, spec: {ports: [{port: 80}]}}\n", []string{"default/web 80"}},
		"marker in a block scalar":     {"a.yaml", "apiVersion: v1\nkind: Service\nmetadata:\n  name: web\n  annotations:\n    note: |\n      ---\n      kind: none\nspec: {ports: [{port: 80}]}\n", []string{"default/web 80"}},
		"null document":                {"a.yaml", "null\n" + service("web", 80), []string{"default/web 80"}},
		"empty List":                   {"a.json", `{"apiVersion":"v1","kind":"List","items":[]}`, nil},
		"empty file":                   {"a.yaml", "", nil},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDir(t)
			d.write(c.file, c.text)
			if name == "null document" {
				d.load()
			} else {
				d.expectErrors()
			}
			d.expect(c.want...)
		})
	}
}

func TestOtherKindsAreSkippedWithANote(t *testing.T) {
	d := newDir(t)
	d.write("a.yaml", "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: x, labels: {a: 1}}\n---\napiVersion: serving.knative.dev/v1\nkind: Service\nmetadata: {name: web}\n"+service("web", 80))
	d.expectErrors()
	d.expect("default/web 80")
	var notes []string
	for _, n := range d.src.Report().Notes {
		notes = append(notes, strings.TrimPrefix(n.String(), d.path+"/"))
	}
	want := []string{
		"a.yaml: document 1: apps/v1 Deployment is not used by Weir, skipped",
		"a.yaml: document 2: serving.knative.dev/v1 Service is not used by Weir, skipped",
	}
	if !slices.Equal(notes, want) {
		t.Errorf("notes %q", notes)
	}
}

func TestUnchangedObjectsAreNotTouched(t *testing.T) {
	d := newDir(t)
	d.write("a.yaml", service("web", 80)+service("api", 81))
	d.expectErrors()
	d.write("a.yaml", "# a comment\n"+service("api", 81)+service("web", 82))
	if _, err := d.src.Load(); err != nil {
		t.Fatal(err)
	}
	up := d.src.Flush()
	if len(up.Put) != 1 || up.Put[0].Name.Name != "web" || len(up.Deleted) != 0 || !up.Synced {
		t.Errorf("update %+v", up)
	}
	if _, err := d.src.Load(); err != nil {
		t.Fatal(err)
	}
	if up := d.src.Flush(); up != nil {
		t.Errorf("update without a change: %+v", up)
	}
}

func TestStandardInput(t *testing.T) {
	src := newSource("")
	report, err := src.LoadFiles([]string{"-"}, bytes.NewBufferString(service("web", 80)+service("bad", 0)))
	if err != nil {
		t.Fatal(err)
	}
	src.Flush()
	if got := serves(src); !slices.Equal(got, []string{"default/web 80"}) {
		t.Errorf("served %q", got)
	}
	if len(report.Errors) != 1 || report.Errors[0].File != "standard input" {
		t.Errorf("errors %v", report.Err())
	}
}

func TestStatsCountWhatIsPassedOver(t *testing.T) {
	d := newDir(t)
	d.write("a.yaml", service("web", 80)+slice("web-1", "web", "10.1.1.1")+
		strings.NewReplacer("IPv4", "FQDN", "10.1.1.2", "www.example.com").Replace(slice("web-2", "web", "10.1.1.2")))
	d.expectErrors()
	if got, want := d.src.Stats(), (discovery.Stats{Services: 1, Slices: 2, FQDNSlices: 1}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}
