package vm

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/weirlb/weir/perf/netlab/patience"
	"github.com/weirlb/weir/perf/vm/job"
)

// emulator is the program that runs virtual machines.
const emulator = "qemu-system-x86_64"

// A virtual machine without a line on the console for silence, on a quiet machine, hangs.
// Without KVM a boot takes several seconds more.
const silence = 90 * time.Second

// machine is a virtual machine that boots once.
type machine struct {
	kernel *Kernel
	initrd string
	out    string   // folder of the results, which the machine writes
	args   []string // NICs
	prefix []string // of the command line: how to get to where the NICs' other ends are
	cpus   int
	memory int // MiB
	kvm    bool
	limit  time.Duration     // from the start to the end; then it is killed
	began  func(name string) // a case begins
}

// hasKVM reports whether the machine can run a stock kernel by KVM: /dev/kvm alone does not
// mean that the CPU has the extensions.
func hasKVM() bool {
	text, err := os.ReadFile("/proc/cpuinfo")
	if err != nil || !regexp.MustCompile(`(?m)^flags\b.*\b(svm|vmx)\b`).Match(text) {
		return false
	}
	f, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0)
	if err != nil {
		return false
	}
	return f.Close() == nil
}

// command is the command line of the emulator.
func (m *machine) command() []string {
	accel := acceleration(m.kvm)
	share := func(id, path, options string) []string {
		return []string{
			"-fsdev", "local,id=" + id + ",path=" + path + ",security_model=none" + options,
			"-device", "virtio-9p-pci,fsdev=" + id + ",mount_tag=" + id,
		}
	}
	args := append([]string{emulator, "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-machine", "q35"}, accel...)
	args = append(args, "-smp", fmt.Sprint(m.cpus), "-m", fmt.Sprint(m.memory), "-serial", "stdio",
		"-kernel", m.kernel.Image, "-initrd", m.initrd,
		// A panic ends the emulator. Without mitigations emulation is faster. Namespaces come
		// and go within grace periods, which take long where CPUs are emulated.
		"-append", "console=ttyS0 panic=-1 loglevel=4 mitigations=off tsc=unstable random.trust_cpu=on rcupdate.rcu_expedited=1 rdinit=/vm/guest",
		"-device", "virtio-rng-pci")
	args = append(args, share("host", "/", ",readonly=on,multidevs=remap")...)
	args = append(args, share("out", m.out, "")...)
	return append(args, m.args...)
}

// run boots the machine and waits for the end. It returns the time to the first case, and
// an error if the machine hung, or ended before the last case had.
func (m *machine) run(ctx context.Context) (boot time.Duration, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	log, err := os.Create(filepath.Join(m.out, "console"))
	if err != nil {
		return 0, err
	}
	defer log.Close()
	// It gives way to everything else on this machine.
	args := slices.Concat(m.prefix, []string{"nice", "-n", "10"}, m.command())
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	cmd.Stderr = log
	console, err := cmd.StdoutPipe()
	if err != nil {
		return 0, err
	}
	start := time.Now()
	// The signal of Pdeathsig comes when the thread that forked ends.
	if err := onLockedThread(cmd.Start); err != nil {
		return 0, err
	}
	lines := make(chan string)
	go func() {
		s := bufio.NewScanner(console)
		s.Buffer(nil, 1<<20)
		for s.Scan() {
			lines <- s.Text()
		}
		close(lines)
	}()
	done := false
	err = m.follow(lines, log, func(line string) {
		switch {
		case strings.HasPrefix(line, job.Ready):
			boot = time.Since(start)
		case strings.HasPrefix(line, job.Began):
			m.began(strings.TrimSpace(strings.TrimPrefix(line, job.Began)))
		case strings.HasPrefix(line, job.Done):
			done = true
		}
	})
	if err != nil {
		cancel()
		for range lines { // until the emulator is gone
		}
	}
	wait := cmd.Wait()
	switch {
	case err != nil:
		return boot, err
	case done:
		return boot, nil
	case ctx.Err() != nil:
		return boot, ctx.Err()
	}
	return boot, errors.Join(errors.New("the virtual machine ended before the last case"), wait)
}

// follow hands on the lines of the console until there are no more, none comes for long, or the
// time of the whole machine is up: a guest whose case cannot be killed shows signs of life.
func (m *machine) follow(lines <-chan string, log *os.File, line func(string)) error {
	deadline := time.After(m.limit)
	for {
		limit := patience.For(silence)
		select {
		case <-deadline:
			return fmt.Errorf("the virtual machine did not end in %.0f s", m.limit.Seconds())
		case text, ok := <-lines:
			if !ok {
				return nil
			}
			fmt.Fprintln(log, text)
			line(strings.TrimRight(text, "\r"))
		case <-time.After(limit):
			return fmt.Errorf("the virtual machine hung: nothing on the console for %.0f s", limit.Seconds())
		}
	}
}
