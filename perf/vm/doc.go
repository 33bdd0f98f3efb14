// Package vm runs Weir's tests on other kernels and on emulated NICs, in QEMU, with KVM
// where the machine has it and without it elsewhere.
//
// Kernels and QEMU are Debian's packages, fetched with apt into a cache directory. Kernels
// are unpacked, never installed. A virtual machine has the file system of this machine,
// read-only over 9p, below a tmpfs; so curl, ip or python3 need no image. An initramfs holds
// the rest: the boot modules of the kernel, the static weir, the compiled test binaries, and
// perf/vm/guest as the first process.
//
// The cases of a kernel that need the same NICs share a boot. The verdict of a case is that
// of its test binary; a kernel that reports a defect of its own meanwhile fails the case too.
// The tests of a case with Host run on this machine, where virtual machines are nodes on a
// network of namespaces.
package vm
