package deploy

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"

	"github.com/weirlb/weir/perf/netlab"
)

// ociImage is an image in a tar of an OCI image layout.
type ociImage struct {
	t     *testing.T
	files map[string][]byte
}

// ociRef names a blob.
type ociRef struct {
	Digest   string
	Size     int
	Platform struct{ Architecture, OS string }
}

// ociConfig is the configuration of an image.
type ociConfig struct {
	Architecture, OS string
	Config           struct {
		User            string
		Entrypoint, Cmd []string
	}
	RootFS struct {
		DiffIDs []string `json:"diff_ids"`
	}
}

func readImage(t *testing.T, file string) *ociImage {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	i := &ociImage{t, map[string][]byte{}}
	for r := tar.NewReader(f); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return i
		}
		if err == nil {
			i.files[h.Name], err = io.ReadAll(r)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// blob returns a blob, which must have the digest and the size that it is named by.
func (i *ociImage) blob(r ociRef) []byte {
	i.t.Helper()
	data := i.files["blobs/sha256/"+r.Digest[len("sha256:"):]]
	if got := fmt.Sprintf("sha256:%x", sha256.Sum256(data)); got != r.Digest || len(data) != r.Size {
		i.t.Fatalf("blob %s of %d bytes has digest %s and %d bytes", r.Digest, r.Size, got, len(data))
	}
	return data
}

func decode[T any](t *testing.T, data []byte) *T {
	t.Helper()
	v := new(T)
	if err := json.Unmarshal(data, v); err != nil {
		t.Fatalf("%v: %s", err, data)
	}
	return v
}

// unpack writes the files of the image into a directory, as a container runtime does.
func (i *ociImage) unpack(dir string) *ociConfig {
	i.t.Helper()
	index := decode[struct{ Manifests []ociRef }](i.t, i.files["index.json"])
	if len(index.Manifests) != 1 || index.Manifests[0].Platform.Architecture != runtime.GOARCH {
		i.t.Fatalf("the index has %+v", index.Manifests)
	}
	manifest := decode[struct {
		Config ociRef
		Layers []ociRef
	}](i.t, i.blob(index.Manifests[0]))
	config := decode[ociConfig](i.t, i.blob(manifest.Config))
	if len(manifest.Layers) != len(config.RootFS.DiffIDs) {
		i.t.Fatalf("%d layers, %d checksums of their contents", len(manifest.Layers), len(config.RootFS.DiffIDs))
	}
	for n, l := range manifest.Layers {
		z, err := gzip.NewReader(bytes.NewReader(i.blob(l)))
		if err != nil {
			i.t.Fatal(err)
		}
		plain, err := io.ReadAll(z)
		if err != nil {
			i.t.Fatal(err)
		}
		if got := fmt.Sprintf("sha256:%x", sha256.Sum256(plain)); got != config.RootFS.DiffIDs[n] {
			i.t.Errorf("the content of layer %d has checksum %s, want %s", n, got, config.RootFS.DiffIDs[n])
		}
		i.unpackLayer(dir, plain)
	}
	return config
}

func (i *ociImage) unpackLayer(dir string, plain []byte) {
	i.t.Helper()
	for r := tar.NewReader(bytes.NewReader(plain)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		name := filepath.Join(dir, filepath.Clean("/"+h.Name))
		switch {
		case err != nil:
		case h.Typeflag == tar.TypeDir:
			err = os.Mkdir(name, os.FileMode(h.Mode))
		default:
			var data []byte
			if data, err = io.ReadAll(r); err == nil {
				err = os.WriteFile(name, data, os.FileMode(h.Mode))
			}
		}
		if err != nil {
			i.t.Fatal(err)
		}
	}
}

// The image that a release has is unpacked and run in the pod's sandbox, with what the image
// says to run: it serves, with certificates of public authorities.
func TestWireImageOfAReleaseServes(t *testing.T) {
	n := newNode(t)
	files := filepath.Join(n.Dir(), "image")
	if err := os.Mkdir(files, 0o755); err != nil {
		t.Fatal(err)
	}
	config := readImage(t, release(t, "v1.2.3", "oci.tar")).unpack(files)
	n.configure(map[string]string{
		"weir.yaml":     fmt.Sprintf(nodeConfig, netlab.Host4(netlab.ClientNet, 1)),
		"services.yaml": n.serve(),
	})
	c := n.container(podSpec(t))
	if !slices.Equal(config.Config.Entrypoint, []string{"/weir"}) || !slices.Equal(config.Config.Cmd, c.Args) || config.Config.User != "0:0" {
		t.Errorf("the image runs %+v, the pod /weir %v", config.Config, c.Args)
	}
	pem, err := os.ReadFile(filepath.Join(files, "etc/ssl/certs/ca-certificates.crt"))
	if err != nil || !bytes.Contains(pem, []byte("BEGIN CERTIFICATE")) {
		t.Errorf("certificates: %v", err)
	}
	c.Binary, c.Image, c.Args = "", files, config.Config.Cmd
	p := n.start(c)
	if s := n.status(p); s.Version != "1.2.3" && s.Version != "v1.2.3" {
		t.Logf("version %s", s.Version)
	}
	n.confined(p, c)
	for _, r := range reach {
		if err := n.download(r.nodePort); err != nil {
			t.Errorf("%s: %v", r.name, err)
		}
	}
	if err := p.Stop(within); err != nil {
		t.Fatal(err)
	}
}
