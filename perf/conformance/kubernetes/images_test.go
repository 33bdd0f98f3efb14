package kubernetes

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"

	imageutils "k8s.io/kubernetes/test/utils/image"
)

// pauseImage is that of sandboxes: agnhost's pause does what pause does.
var pauseImage = imageutils.GetE2EImage(imageutils.Pause)

// tools are Debian's programs in the images, with their libraries. busybox stands for all others: its shell would prefer
// its own nc, and its wget -T crashes.
var tools = []string{"/usr/bin/curl", "/usr/bin/wget", "/bin/busybox", "/bin/dash", "/bin/nc.openbsd"}

var library = regexp.MustCompile(`(/\S+) \(0x`)

// writeImages writes an archive of images: a layer of agnhost, shell and tools, under the names that the cases use.
func writeImages(file, bin string) error {
	layer := &bytes.Buffer{}
	if err := writeLayer(layer, bin); err != nil {
		return err
	}
	type imageConfig struct {
		Entrypoint []string `json:"Entrypoint,omitempty"`
		Cmd        []string `json:"Cmd,omitempty"`
		Env        []string
	}
	out, err := os.Create(file)
	if err != nil {
		return err
	}
	defer out.Close()
	w := tar.NewWriter(out)
	if err := add(w, "layer.tar", 0o644, layer.Bytes()); err != nil {
		return err
	}
	var manifest []map[string]any
	env := []string{"PATH=/usr/bin:/bin"}
	for name, config := range map[string]imageConfig{
		imageutils.GetE2EImage(imageutils.Agnhost): {[]string{"/agnhost"}, []string{"pause"}, env},
		pauseImage: {[]string{"/agnhost"}, []string{"pause"}, env},
		imageutils.GetE2EImage(imageutils.BusyBox): {nil, []string{"sh"}, env},
	} {
		text, err := json.Marshal(map[string]any{
			"architecture": "amd64", "os": "linux", "config": config,
			"rootfs": map[string]any{"type": "layers", "diff_ids": []string{fmt.Sprintf("sha256:%x", sha256.Sum256(layer.Bytes()))}},
		})
		if err != nil {
			return err
		}
		file := fmt.Sprintf("%x.json", sha256.Sum256([]byte(name)))
		if err := add(w, file, 0o644, text); err != nil {
			return err
		}
		manifest = append(manifest, map[string]any{"Config": file, "RepoTags": []string{name}, "Layers": []string{"layer.tar"}})
	}
	text, err := json.Marshal(manifest)
	if err != nil {
		return err
	}
	if err := add(w, "manifest.json", 0o644, text); err != nil {
		return err
	}
	return w.Close()
}

func writeLayer(out io.Writer, bin string) error {
	w := tar.NewWriter(out)
	for _, dir := range []string{"bin", "etc", "tmp", "usr", "usr/bin"} {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir + "/", Mode: 0o1777}); err != nil {
			return err
		}
	}
	files := map[string]string{"/agnhost": filepath.Join(bin, "agnhost")}
	for _, tool := range tools {
		files[tool] = tool
		out, err := exec.Command("ldd", tool).CombinedOutput()
		if err != nil && !strings.Contains(string(out), "not a dynamic executable") {
			return fmt.Errorf("ldd %s: %w: %s", tool, err, out)
		}
		for _, m := range library.FindAllStringSubmatch(string(out), -1) {
			files[m[1]] = m[1]
		}
	}
	for name, from := range files {
		content, err := os.ReadFile(from)
		if err != nil {
			return err
		}
		if err := add(w, strings.TrimPrefix(name, "/"), 0o755, content); err != nil {
			return err
		}
	}
	if err := add(w, "etc/wgetrc", 0o644, []byte("tries = 1\n")); err != nil { // as that of busybox
		return err
	}
	applets, err := exec.Command("/bin/busybox", "--list").Output()
	if err != nil {
		return err
	}
	links := map[string]string{"bin/nc": "/bin/nc.openbsd", "bin/sh": "/bin/dash", "bin/wget": "/usr/bin/wget"}
	for _, name := range strings.Fields(string(applets)) {
		if links["bin/"+name] == "" && name != "busybox" {
			links["bin/"+name] = "/bin/busybox"
		}
	}
	for name, to := range links {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: to, Mode: 0o777}); err != nil {
			return err
		}
	}
	return w.Close()
}

func add(w *tar.Writer, name string, mode int64, content []byte) error {
	if err := w.WriteHeader(&tar.Header{Name: name, Mode: mode, Size: int64(len(content))}); err != nil {
		return err
	}
	_, err := w.Write(content)
	return err
}
