package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"io"
	"runtime"
	"strings"
	"testing"
)

// files are those of an archive, by name.
func files(t *testing.T, r io.Reader) map[string]string {
	t.Helper()
	all := map[string]string{}
	for r := tar.NewReader(r); ; {
		h, err := r.Next()
		if err == io.EOF {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		all[h.Name] = string(text)
	}
}

// The package has the version of the release, and a compression that dpkg of Debian 11 knows.
func testDeb(t *testing.T, dir string) {
	if deb := read(t, find(t, dir, "weir_1.2.3_"+runtime.GOARCH+".deb")); !bytes.Contains(deb, []byte("data.tar.gz")) {
		t.Error("the data are not in data.tar.gz")
	}
}

// The chart has the version of the release, as that of the image too.
func testChart(t *testing.T, dir string) {
	z, err := gzip.NewReader(bytes.NewReader(read(t, find(t, dir, "weir-1.2.3.tgz"))))
	if err != nil {
		t.Fatal(err)
	}
	all := files(t, z)
	for _, want := range []string{"\nversion: 1.2.3\n", "\nappVersion: \"1.2.3\"\n"} {
		if !strings.Contains(all["weir/Chart.yaml"], want) {
			t.Errorf("Chart.yaml has no %q:\n%s", want, all["weir/Chart.yaml"])
		}
	}
	for _, name := range []string{"weir/values.yaml", "weir/values.schema.json", "weir/templates/NOTES.txt", "weir/crds/weir.dev.yaml"} {
		if all[name] == "" {
			t.Errorf("the chart has no %s", name)
		}
	}
}

// An image is imported under the name that the chart has for it.
func testImageName(t *testing.T, dir string) {
	all := files(t, bytes.NewReader(read(t, find(t, dir, ".oci.tar"))))
	const name = "ghcr.io/weirlb/weir:1.2.3"
	var index struct {
		Manifests []struct{ Annotations map[string]string }
	}
	if err := json.Unmarshal([]byte(all["index.json"]), &index); err != nil {
		t.Fatal(err)
	}
	if got := index.Manifests[0].Annotations["io.containerd.image.name"]; got != name {
		t.Errorf("containerd names it %s, want %s", got, name)
	}
	var docker []struct {
		Config           string
		RepoTags, Layers []string
	}
	if err := json.Unmarshal([]byte(all["manifest.json"]), &docker); err != nil {
		t.Fatal(err)
	}
	if len(docker) != 1 || strings.Join(docker[0].RepoTags, " ") != name || len(docker[0].Layers) != 1 {
		t.Fatalf("Docker finds %+v, want %s with a layer", docker, name)
	}
	for _, file := range []string{docker[0].Config, docker[0].Layers[0]} {
		if all[file] == "" {
			t.Errorf("manifest.json names %q, which is missing", file)
		}
	}
	if values := string(read(t, "../helm/weir/values.yaml")); !strings.Contains(values, "\n  repository: "+repository+"\n") {
		t.Errorf("the chart's image is not %s", repository)
	}
}
