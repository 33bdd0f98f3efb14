package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
)

// Lines of Chart.yaml. The second is the default tag of the image.
var (
	chartVersion = regexp.MustCompile(`(?m)^version: .*$`)
	appVersion   = regexp.MustCompile(`(?m)^appVersion: .*$`)
)

// chart writes the Helm chart of this version.
func (b *binary) chart(dir string) error {
	const source = "deploy/helm/weir"
	a, err := newArchive(filepath.Join(dir, "weir-"+b.version+".tgz"), b.time)
	if err != nil {
		return err
	}
	root := filepath.Join(b.root, source)
	err = filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, file)
		if name == "Chart.yaml" {
			text = chartVersion.ReplaceAll(text, []byte("version: "+b.version))
			text = appVersion.ReplaceAll(text, []byte(`appVersion: "`+tag(b.version)+`"`))
		}
		return errors.Join(err, a.text("weir/"+name, text))
	})
	return errors.Join(err, a.close())
}
