package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/perf/vm/job"
)

// aliveEvery is the pause between signs of life on the console.
const aliveEvery = 10 * time.Second

func runCases() error {
	j, err := readJob()
	if err != nil {
		return err
	}
	if err := prepare(j); err != nil {
		return err
	}
	fmt.Println(job.Ready)
	go func() {
		for range time.Tick(aliveEvery) {
			fmt.Println(job.Alive)
		}
	}()
	log, err := openKernelLog()
	if err != nil {
		return err
	}
	for _, c := range j.Cases {
		fmt.Println(job.Began, c.Name)
		r := run(j, c)
		r.Kernel = log.defects()
		text, err := json.Marshal(r)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(job.Out, c.Name+".json"), text, 0o644); err != nil {
			return err
		}
		fmt.Println(job.Ended, c.Name, r.Exit)
	}
	fmt.Println(job.Done)
	return nil
}

// prepare shows the kernel's modules and loads those of the devices and of the job.
func prepare(j *job.Job) error {
	const modules = "/usr/lib/modules"
	if err := os.MkdirAll(modules, 0o755); err != nil {
		return err
	}
	if err := unix.Mount(j.Modules, modules, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount %s on %s: %w", j.Modules, modules, err)
	}
	modprobe(modaliases("pci"))
	modprobe(modaliases("virtio")) // of what the drivers of PCI devices have found
	modprobe(j.Load)
	return exec.Command("ip", "link", "set", "lo", "up").Run()
}

func modprobe(names []string) {
	for _, m := range names {
		if out, err := exec.Command("modprobe", "-q", "-b", m).CombinedOutput(); err != nil && len(out) > 0 {
			fmt.Printf("vm: modprobe %s: %s\n", m, strings.TrimSpace(string(out)))
		}
	}
}

// run runs a case until it ends or the time is up: the case's time on a quiet machine,
// longer by the slowness of this machine.
func run(j *job.Job, c job.Case) job.Result {
	r := job.Result{Name: c.Name, Exit: -1}
	out, err := os.Create(filepath.Join(job.Out, c.Name+".log"))
	if err != nil {
		return r
	}
	defer out.Close()
	limit := time.Duration(c.Seconds * j.Slow * float64(time.Second))
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, c.Command[0], c.Command[1:]...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = c.Dir, out, out
	cmd.Env = append(append(os.Environ(), j.Env...), c.Env...)
	cmd.WaitDelay = 10 * time.Second
	// A Go program shows the stacks of the goroutines.
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGQUIT) }
	began := time.Now()
	err = cmd.Run()
	r.Seconds = time.Since(began).Seconds()
	r.TimedOut = ctx.Err() != nil
	switch {
	case cmd.ProcessState != nil:
		r.Exit = cmd.ProcessState.ExitCode()
	case err != nil:
		fmt.Fprintln(out, err)
	}
	if r.Exit == 0 && errors.Is(err, exec.ErrWaitDelay) {
		fmt.Fprintln(out, "a process of the case held the output open")
	}
	if r.TimedOut {
		fmt.Fprintf(out, "vm: ended after %.0f s\n", limit.Seconds())
	}
	return r
}

// kernelLog reads the kernel's log from the first case on.
type kernelLog struct{ fd int }

func openKernelLog() (*kernelLog, error) {
	fd, err := unix.Open("/dev/kmsg", unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("/dev/kmsg: %w", err)
	}
	_, err = unix.Seek(fd, 0, unix.SEEK_END)
	return &kernelLog{fd}, err
}

// defect is a line by which a kernel reports a defect of its own. Stalls and hung tasks are
// not among them: an emulated CPU that waits for a busy machine causes both.
var defect = regexp.MustCompile(`BUG: (?:unable|kernel|KASAN|sleeping|scheduling)|WARNING: |Oops|general protection|refcount_t|kernel BUG at|list_(?:add|del) corruption|leaked`)

// defects returns the lines since the last call that report a defect.
func (k *kernelLog) defects() []string {
	var list []string
	buf := make([]byte, 16384)
	for {
		n, err := unix.Read(k.fd, buf)
		if errors.Is(err, unix.EPIPE) { // lines were lost
			continue
		}
		if err != nil || n <= 0 {
			return list
		}
		_, text, _ := strings.Cut(string(buf[:n]), ";")
		text, _, _ = strings.Cut(text, "\n")
		if defect.MatchString(text) {
			list = append(list, text)
		}
	}
}
