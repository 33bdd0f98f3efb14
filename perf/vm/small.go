package vm

import (
	"context"
	"errors"
	"os"
)

// Fetch returns a kernel of Debian, as Options.Kernels names it, for a test with machines of
// its own.
func Fetch(ctx context.Context, name string, log func(format string, args ...any)) (*Kernel, error) {
	dir, err := cacheFolder()
	if err != nil {
		return nil, err
	}
	a := &apt{dir: dir, log: log}
	if err := a.installEmulator(ctx); err != nil {
		return nil, err
	}
	return a.fetch(ctx, name)
}

// Initramfs writes a first file system with a static program as /init, and modules in
// /modules for it to load in the order of their names.
func (k *Kernel) Initramfs(file, program string, modules ...string) error {
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	defer f.Close()
	a := newArchive(f)
	a.device("dev/console", 5, 1)
	a.file("init", program)
	if err := k.addModules(a, modules); err != nil {
		return err
	}
	return errors.Join(a.close(), f.Close())
}

// Accelerator is the arguments of the emulator that choose KVM, where this machine has it,
// and tells whether it has.
func Accelerator() (args []string, kvm bool) {
	kvm = hasKVM()
	return acceleration(kvm), kvm
}

func acceleration(kvm bool) []string {
	if kvm {
		return []string{"-accel", "kvm", "-cpu", "host"}
	}
	return []string{"-accel", "tcg,thread=multi", "-cpu", "max"}
}

// Emulator is the program that runs virtual machines.
const Emulator = emulator
