// Package poolfile reads files with objects of address pools and their announcement.
package poolfile

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"sigs.k8s.io/yaml"

	"github.com/weirlb/weir/discovery/addresspool"
	"github.com/weirlb/weir/discovery/manifest"
)

// maxFileSize bounds a file of pools, in bytes.
const maxFileSize = 4 << 20

// Read reads the objects of YAML and JSON files, and of the directories' files that end in
// .yaml, .yml or .json. A file that cannot be read is an error; the others are read all the same.
func Read(paths []string) ([]addresspool.Object, error) {
	var out []addresspool.Object
	var errs []error
	for _, path := range paths {
		files, err := filesOf(path)
		if err != nil {
			errs = append(errs, err)
		}
		for _, file := range files {
			objects, err := readFile(file)
			if err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", file, err))
			}
			out = append(out, objects...)
		}
	}
	return out, errors.Join(errs...)
}

// filesOf is the file, or the files of the directory in order.
func filesOf(path string) ([]string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return []string{path}, nil
	}
	entries, err := os.ReadDir(path)
	var out []string
	for _, e := range entries {
		if ext := filepath.Ext(e.Name()); slices.Contains([]string{".yaml", ".yml", ".json"}, ext) {
			out = append(out, filepath.Join(path, e.Name()))
		}
	}
	return out, err
}

// readFile reads the documents of a file.
func readFile(file string) ([]addresspool.Object, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxFileSize+1))
	if err != nil {
		return nil, err
	}
	if len(text) > maxFileSize {
		return nil, fmt.Errorf("more than %d MB", maxFileSize>>20)
	}
	docs, err := manifest.Documents(text)
	if err != nil {
		return nil, err
	}
	var out []addresspool.Object
	for _, doc := range docs {
		object, err := yaml.YAMLToJSONStrict(doc)
		if err != nil {
			return out, err
		}
		if string(object) != "null" {
			out = append(out, addresspool.Object{Source: file, JSON: object})
		}
	}
	return out, nil
}
