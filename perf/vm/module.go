package vm

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// bootModules are those that the initramfs needs to reach the file system of the harness.
var bootModules = []string{"virtio_pci", "9pnet_virtio", "9p", "overlay", "virtio_rng"}

// dependencies reads modules.dep: for each module, by its name, its file and those that it
// needs (modules.dep(5)).
type dependencies map[string][]string

func readDependencies(r io.Reader) (dependencies, error) {
	deps := dependencies{}
	s := bufio.NewScanner(r)
	s.Buffer(nil, 1<<20)
	for s.Scan() {
		file, needs, ok := strings.Cut(s.Text(), ":")
		if !ok {
			return nil, fmt.Errorf("modules.dep: %q has no colon", s.Text())
		}
		deps[moduleName(file)] = append([]string{file}, strings.Fields(needs)...)
	}
	return deps, s.Err()
}

// moduleName is the name of a module's file: the kernel does not tell - from _.
func moduleName(file string) string {
	name, _, _ := strings.Cut(filepath.Base(file), ".ko")
	return strings.ReplaceAll(name, "-", "_")
}

// order returns the files of modules and of what they need, each once and after its needs.
// A name that modules.dep does not have is built in.
func (d dependencies) order(names ...string) []string {
	var files []string
	seen := map[string]bool{}
	var add func(name string)
	add = func(name string) {
		list := d[name]
		if seen[name] || len(list) == 0 {
			return
		}
		seen[name] = true
		for _, need := range list[1:] {
			add(moduleName(need))
		}
		files = append(files, list[0])
	}
	for _, n := range names {
		add(n)
	}
	return files
}

// addModules puts modules of a kernel into an initramfs, not compressed and named in the
// order of loading.
func (k *Kernel) addModules(a *archive, modules []string) error {
	dir := filepath.Join(k.Modules, k.Version)
	text, err := os.ReadFile(filepath.Join(dir, "modules.dep"))
	if err != nil {
		return err
	}
	deps, err := readDependencies(bytes.NewReader(text))
	if err != nil {
		return err
	}
	for i, file := range deps.order(modules...) {
		content, err := readModule(filepath.Join(dir, file))
		if err != nil {
			return err
		}
		a.data(fmt.Sprintf("modules/%03d-%s.ko", i, moduleName(file)), content)
	}
	return nil
}

// readModule returns a module, unpacked.
func readModule(file string) ([]byte, error) {
	for end, program := range map[string]string{".xz": "xz", ".zst": "zstd", ".gz": "gzip"} {
		if strings.HasSuffix(file, end) {
			out, err := exec.Command(program, "-dc", file).Output()
			if err != nil {
				return nil, fmt.Errorf("%s %s: %w", program, file, err)
			}
			return out, nil
		}
	}
	return os.ReadFile(file)
}
