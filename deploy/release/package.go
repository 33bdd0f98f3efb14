package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/goreleaser/nfpm/v2"
	_ "github.com/goreleaser/nfpm/v2/deb"
	_ "github.com/goreleaser/nfpm/v2/rpm"
)

// write writes the files of an architecture.
func (b *binary) write(o options) error {
	out := o.out
	sbom := filepath.Join(out, b.name()+".cdx.json")
	if err := b.writeSBOM(sbom); err != nil {
		return err
	}
	units, err := b.units()
	if err != nil {
		return err
	}
	for _, format := range o.formats {
		switch file := filepath.Join(out, b.name()+"."+format); format {
		case "chart": // of all architectures
		case "tar.gz":
			err = b.archive(file, sbom)
		case "oci.tar":
			err = b.image(file, o.certificates)
		default:
			err = b.pack(out, format, units, sbom)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", format, err)
		}
	}
	return nil
}

// name is the start of the names of files that no packager names.
func (b *binary) name() string {
	return fmt.Sprintf("weir_%s_linux_%s", b.version, b.arch)
}

// units writes the systemd units as packages have them: with the program in /usr/bin.
func (b *binary) units() (string, error) {
	dir := filepath.Join(filepath.Dir(b.file), "units")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	for _, name := range []string{"weir.service", "weir-decap.service"} {
		text, err := os.ReadFile(filepath.Join(b.root, "deploy/systemd", name))
		if err != nil {
			return "", err
		}
		text = bytes.ReplaceAll(text, []byte("/usr/local/bin/weir"), []byte("/usr/bin/weir"))
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil {
			return "", err
		}
	}
	return dir, nil
}

// pack writes the package that nfpm.yaml describes.
func (b *binary) pack(out, format, units, sbom string) error {
	variables := map[string]string{
		"ROOT": b.root, "BINARY": b.file, "EXTRAS": b.extras, "UNITS": units, "SBOM": sbom,
		"ARCH": b.arch, "VERSION": b.version,
	}
	text, err := os.ReadFile(filepath.Join(b.root, "deploy/release/nfpm.yaml"))
	if err != nil {
		return err
	}
	expanded := os.Expand(string(text), func(name string) string { return variables[name] })
	config, err := nfpm.Parse(strings.NewReader(expanded))
	if err != nil {
		return err
	}
	info, err := config.Get(format)
	if err != nil {
		return err
	}
	info = nfpm.WithDefaults(info)
	info.MTime = b.time
	if err := nfpm.PrepareForPackager(info, format); err != nil {
		return err
	}
	packager, err := nfpm.Get(format)
	if err != nil {
		return err
	}
	file, err := os.Create(filepath.Join(out, packager.ConventionalFileName(info)))
	if err != nil {
		return err
	}
	defer file.Close()
	if err := packager.Package(info, file); err != nil {
		return err
	}
	return file.Close()
}
