package vm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// cacheFolder is where packages and kernels are kept, outside of the source.
func cacheFolder() (string, error) {
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	dir = filepath.Join(dir, "weir", "vm")
	return dir, os.MkdirAll(dir, 0o755)
}

// fetch returns the kernel of a name, from the cache if it has been chosen lately.
func (a *apt) fetch(ctx context.Context, name string) (*Kernel, error) {
	record := a.path("kernel-" + name + ".json")
	if s, err := os.Stat(record); err == nil && time.Since(s.ModTime()) < freshFor {
		var k Kernel
		if text, err := os.ReadFile(record); err == nil && json.Unmarshal(text, &k) == nil && k.whole() {
			return &k, nil
		}
	}
	if err := a.update(ctx); err != nil {
		return nil, err
	}
	all, err := a.kernels(ctx)
	if err != nil {
		return nil, err
	}
	version, packages, err := packagesOf(name, all)
	if err != nil {
		return nil, err
	}
	k := &Kernel{Name: name, Version: version + "-amd64", Package: packages[0]}
	dir := a.path("kernel", k.Version)
	k.Image, k.Modules = filepath.Join(dir, "vmlinuz"), filepath.Join(dir, "lib", "modules")
	if !k.whole() {
		if err := a.unpack(ctx, k, dir, packages); err != nil {
			return nil, fmt.Errorf("kernel %s: %w", name, err)
		}
	}
	text, err := json.Marshal(k)
	if err != nil {
		return nil, err
	}
	return k, os.WriteFile(record, text, 0o644)
}

func (k *Kernel) whole() bool {
	_, image := os.Stat(k.Image)
	_, modules := os.Stat(filepath.Join(k.Modules, k.Version, "modules.dep"))
	return image == nil && modules == nil
}

// unpack fetches a kernel's packages and makes its folder, whole or not at all.
func (a *apt) unpack(ctx context.Context, k *Kernel, dir string, packages []string) error {
	files, err := a.download(ctx, packages...)
	if err != nil {
		return err
	}
	defer os.RemoveAll(filepath.Dir(files[0]))
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return err
	}
	fresh, err := os.MkdirTemp(filepath.Dir(dir), "new-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(fresh)
	for _, f := range files {
		if err := command(ctx, "dpkg-deb", "-x", f, fresh); err != nil {
			return err
		}
	}
	// Newer packages have /usr/lib/modules; depmod wants lib/modules.
	if usr := filepath.Join(fresh, "usr", "lib", "modules"); exists(usr) {
		if err := errors.Join(os.MkdirAll(filepath.Join(fresh, "lib"), 0o755), os.Rename(usr, filepath.Join(fresh, "lib", "modules"))); err != nil {
			return err
		}
	}
	images, err := filepath.Glob(filepath.Join(fresh, "boot", "vmlinuz-*"))
	if err == nil && len(images) == 0 {
		images, err = filepath.Glob(filepath.Join(fresh, "lib", "modules", "*", "vmlinuz"))
	}
	if err != nil || len(images) != 1 {
		return fmt.Errorf("%v have %d images (%w)", packages, len(images), err)
	}
	if err := errors.Join(os.Rename(images[0], filepath.Join(fresh, "vmlinuz")),
		command(ctx, "depmod", "-b", fresh, k.Version), os.RemoveAll(dir)); err != nil {
		return err
	}
	return os.Rename(fresh, dir)
}

func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}

func command(ctx context.Context, name string, args ...string) error {
	if out, err := exec.CommandContext(ctx, name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", name, err, out)
	}
	return nil
}
