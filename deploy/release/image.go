package main

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
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// Media types of the OCI image specification 1.1.
const (
	typeIndex    = "application/vnd.oci.image.index.v1+json"
	typeManifest = "application/vnd.oci.image.manifest.v1+json"
	typeConfig   = "application/vnd.oci.image.config.v1+json"
	typeLayer    = "application/vnd.oci.image.layer.v1.tar+gzip"
)

// repository is the name of the image in the chart's values.
const repository = "ghcr.io/weirlb/weir"

// tag is a version as the tag of an image, which has no plus sign.
func tag(version string) string { return strings.ReplaceAll(version, "+", "-") }

// certificatesFile is in the image where Go programs look for it.
const certificatesFile = "etc/ssl/certs/ca-certificates.crt"

// imageConfig is how a container of the image runs.
type imageConfig struct {
	User         string              `json:"User,omitempty"`
	ExposedPorts map[string]struct{} `json:"ExposedPorts,omitempty"`
	Entrypoint   []string            `json:"Entrypoint"`
	Cmd          []string            `json:"Cmd"`
	Labels       map[string]string   `json:"Labels"`
}

// descriptor names a blob of the image.
type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int64             `json:"size"`
	Platform    map[string]string `json:"platform,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

// layout writes an image as a tar of an OCI image layout.
type layout struct {
	tar  *tar.Writer
	time time.Time
	err  error
}

func (l *layout) file(name string, data []byte) {
	if l.err == nil {
		l.err = l.tar.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(data)), ModTime: l.time, Format: tar.FormatPAX})
	}
	if l.err == nil {
		_, l.err = l.tar.Write(data)
	}
}

func (l *layout) blob(mediaType string, data []byte) descriptor {
	d := descriptor{MediaType: mediaType, Digest: fmt.Sprintf("sha256:%x", sha256.Sum256(data)), Size: int64(len(data))}
	l.file(d.path(), data)
	return d
}

// path is the name of the blob's file.
func (d *descriptor) path() string { return "blobs/" + strings.Replace(d.Digest, ":", "/", 1) }

func (l *layout) json(name string, v any) {
	data, err := json.Marshal(v)
	l.err = errors.Join(l.err, err)
	l.file(name, data)
}

func (l *layout) object(mediaType string, v any) descriptor {
	data, err := json.Marshal(v)
	l.err = errors.Join(l.err, err)
	return l.blob(mediaType, data)
}

// image writes the container image of the Dockerfile, without a container engine: the program
// and the certificates of public authorities. An import names it as the chart does:
// ctr takes the name from an annotation, and docker load from manifest.json.
func (b *binary) image(file, certificates string) error {
	dockerfile, err := os.ReadFile(filepath.Join(b.root, "deploy/image/Dockerfile"))
	if err != nil {
		return err
	}
	config, err := configOf(string(dockerfile))
	if err != nil {
		return fmt.Errorf("deploy/image/Dockerfile: %w", err)
	}
	config.Labels["org.opencontainers.image.version"] = b.version
	packed, plain, err := b.layer(certificates)
	if err != nil {
		return err
	}
	out, err := os.Create(file)
	if err != nil {
		return err
	}
	defer out.Close()
	l := &layout{tar: tar.NewWriter(out), time: b.time}
	l.file("oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`))
	created := b.time.Format(time.RFC3339)
	settings := l.object(typeConfig, map[string]any{
		"created": created, "architecture": b.arch, "os": "linux", "config": config,
		"rootfs":  map[string]any{"type": "layers", "diff_ids": []string{fmt.Sprintf("sha256:%x", plain)}},
		"history": []any{map[string]string{"created": created, "created_by": "deploy/release"}},
	})
	layer := l.blob(typeLayer, packed)
	manifest := l.object(typeManifest, map[string]any{
		"schemaVersion": 2, "mediaType": typeManifest, "config": settings, "layers": []descriptor{layer},
	})
	name := repository + ":" + tag(b.version)
	manifest.Platform = map[string]string{"architecture": b.arch, "os": "linux"}
	manifest.Annotations = map[string]string{"org.opencontainers.image.ref.name": tag(b.version), "io.containerd.image.name": name}
	l.json("index.json", map[string]any{"schemaVersion": 2, "mediaType": typeIndex, "manifests": []descriptor{manifest}})
	l.json("manifest.json", []any{map[string]any{"Config": settings.path(), "RepoTags": []string{name}, "Layers": []string{layer.path()}}})
	return errors.Join(l.err, l.tar.Close(), out.Close())
}

// layer returns the layer of the image, and the checksum of its content.
func (b *binary) layer(certificates string) (packed, plain []byte, err error) {
	var buf bytes.Buffer
	z, err := gzip.NewWriterLevel(&buf, gzip.BestCompression)
	if err != nil {
		return nil, nil, err
	}
	h := sha256.New()
	t := tar.NewWriter(io.MultiWriter(z, h))
	for _, dir := range []string{"etc", "etc/ssl", "etc/ssl/certs"} {
		if err := t.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir + "/", Mode: 0o755, ModTime: b.time, Format: tar.FormatPAX}); err != nil {
			return nil, nil, err
		}
	}
	if err := add(t, certificates, certificatesFile, 0o644, b.time); err != nil {
		return nil, nil, fmt.Errorf("--certificates: %w", err)
	}
	if err := add(t, b.file, "weir", 0o755, b.time); err != nil {
		return nil, nil, err
	}
	if err := errors.Join(t.Close(), z.Close()); err != nil {
		return nil, nil, err
	}
	return buf.Bytes(), h.Sum(nil), nil
}

// Instructions of a Dockerfile, with those lines joined that a backslash continues.
var (
	instruction = regexp.MustCompile(`(?m)^([A-Z]+)[ \t]+(.*)$`)
	label       = regexp.MustCompile(`([\w.]+)="([^"]*)"`)
)

// configOf reads the last stage of a Dockerfile. An instruction that is not known here is an
// error: the image would lack something.
func configOf(dockerfile string) (*imageConfig, error) {
	text := strings.ReplaceAll(dockerfile, "\\\n", " ")
	text = text[strings.LastIndex(text, "\nFROM ")+1:]
	c := &imageConfig{ExposedPorts: map[string]struct{}{}, Labels: map[string]string{}}
	for _, m := range instruction.FindAllStringSubmatch(text, -1) {
		var err error
		switch name, args := m[1], m[2]; name {
		case "FROM":
			if args != "scratch" {
				err = fmt.Errorf("%s is not scratch", args)
			}
		case "COPY":
			if to := path.Base(args); to != "weir" && to != path.Base(certificatesFile) {
				err = fmt.Errorf("%s is not in the image", to)
			}
		case "LABEL":
			for _, l := range label.FindAllStringSubmatch(args, -1) {
				c.Labels[l[1]] = l[2]
			}
		case "USER":
			c.User = args
		case "EXPOSE":
			for _, port := range strings.Fields(args) {
				c.ExposedPorts[port] = struct{}{}
			}
		case "ENTRYPOINT":
			err = json.Unmarshal([]byte(args), &c.Entrypoint)
		case "CMD":
			err = json.Unmarshal([]byte(args), &c.Cmd)
		default:
			err = errors.New("unknown instruction")
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", m[1], err)
		}
	}
	if len(c.Entrypoint) == 0 {
		return nil, errors.New("the last stage has no ENTRYPOINT")
	}
	return c, nil
}
