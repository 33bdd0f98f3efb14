package vm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/weirlb/weir/perf/netlab"
	"github.com/weirlb/weir/perf/netlab/patience"
	"github.com/weirlb/weir/perf/vm/job"
)

// Variable names the environment variable by which tests on this machine get the kernel.
const Variable = "WEIR_VM"

// tested is the value of Variable.
type tested struct {
	Kernel Kernel
	Guest  string // file of perf/vm/guest
	CPUs   int
	Files  string // folder for console and output
}

// onHost runs the test binaries of cases on this machine.
func (m *matrix) onHost(ctx context.Context, k *Kernel, group []Case, dir string, current *string) error {
	text, err := json.Marshal(tested{Kernel: *k, Guest: m.built["guest"], CPUs: m.CPUs, Files: dir})
	if err != nil {
		return err
	}
	for _, c := range group {
		*current = c.Name
		m.Log("%s: %s begins", k.Version, c.Name)
		env := append(c.Env, Variable+"="+string(text), "WEIR_BINARY="+m.built["weir"])
		slow := patience.Factor()
		if !m.kvm {
			slow *= emulated
		}
		r, err := runOnHost(ctx, &c, m.built[c.binary()], filepath.Join(m.Root, c.Package), filepath.Join(dir, c.Name+".log"), env,
			time.Duration(c.Seconds*slow*float64(time.Second)))
		if err != nil {
			return err
		}
		if text, err = json.Marshal(r); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, c.Name+".json"), text, 0o644); err != nil {
			return err
		}
	}
	*current = ""
	return nil
}

func runOnHost(ctx context.Context, c *Case, binary, dir, log string, env []string, limit time.Duration) (*job.Result, error) {
	out, err := os.Create(log)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	within, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	cmd := exec.CommandContext(within, binary, c.command()[1:]...)
	cmd.Dir, cmd.Stdout, cmd.Stderr, cmd.Env = dir, out, out, append(os.Environ(), env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	cmd.WaitDelay = 10 * time.Second
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGQUIT) } // it shows the stacks
	began, r := time.Now(), &job.Result{Name: c.Name, Exit: -1}
	err = onLockedThread(cmd.Run)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if cmd.ProcessState == nil {
		return nil, err
	}
	r.Exit, r.Seconds, r.TimedOut = cmd.ProcessState.ExitCode(), time.Since(began).Seconds(), within.Err() != nil
	return r, nil
}

// Node is a virtual machine with a virtio-net NIC, eth0, and a shell.
type Node struct {
	*netlab.Daemon
	in       *os.File
	commands int
}

// NodeMAC is the MAC address of a Node.
var NodeMAC = nicMAC(0)

// nodeMemory suffices for weir and the initramfs with it, in MiB.
const nodeMemory = 1536

// StartNode boots a virtual machine for a test of a case with Host. The NIC is a tap of a network
// namespace, which gets this name. The machine sees the files of this one, and has the weir under
// test as /vm/weir.
func StartNode(ctx context.Context, n *netlab.Namespace, tap string) (*Node, error) {
	var on tested
	if err := json.Unmarshal([]byte(os.Getenv(Variable)), &on); err != nil {
		return nil, fmt.Errorf("%s: %w", Variable, err)
	}
	if err := n.Do(func() error { return addTap(tap) }); err != nil {
		return nil, err
	}
	initrd := filepath.Join(on.Files, "initrd-"+tap)
	defer os.Remove(initrd)
	j := &job.Job{Modules: on.Kernel.Modules, Cases: []job.Case{{
		Name: "shell", Dir: "/", Command: []string{"sh", "-c", "exec sh </dev/ttyS0"}, Seconds: time.Hour.Seconds(),
	}}, Slow: 1}
	if err := on.Kernel.jobInitramfs(initrd, j, map[string]string{"weir": os.Getenv("WEIR_BINARY"), "guest": on.Guest}); err != nil {
		return nil, err
	}
	m := &machine{
		kernel: &on.Kernel, initrd: initrd, out: on.Files, cpus: on.CPUs, memory: nodeMemory, kvm: hasKVM(),
		args: onTap("virtio-net-pci", tap, nicMAC(0)),
	}
	args := m.command()
	cmd := exec.Command(args[0], args[1:]...)
	in, typed, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer in.Close()
	cmd.Stdin = in
	d, err := n.StartDaemon(cmd, filepath.Join(on.Files, "console-"+tap))
	if err != nil {
		return nil, errors.Join(err, typed.Close())
	}
	node := &Node{Daemon: d, in: typed}
	return node, node.says(ctx, job.Began+" shell")
}

// Run runs a command of the machine's shell, and waits until it has ended, whatever it returns.
func (n *Node) Run(ctx context.Context, command string) error {
	n.commands++
	done := fmt.Sprintf("vm: did %d", n.commands)
	if _, err := fmt.Fprintf(n.in, "%s\necho %s >/dev/ttyS0\n", command, done); err != nil {
		return err
	}
	return n.says(ctx, done)
}

// says waits for a line of the console.
func (n *Node) says(ctx context.Context, line string) error {
	ctx, cancel := context.WithTimeout(ctx, patience.For(silence))
	defer cancel()
	return n.Until(ctx, func(context.Context) error {
		text, err := os.ReadFile(n.LogFile())
		if err == nil && !hasLine(string(text), line) {
			err = fmt.Errorf("the console does not say %q, but at last %q", line, n.LogTail(3))
		}
		return err
	})
}

func hasLine(text, line string) bool {
	for l := range strings.Lines(text) {
		if strings.TrimRight(l, "\r\n") == line {
			return true
		}
	}
	return false
}

// Cut ends the machine as a power cut does.
func (n *Node) Cut() error { return errors.Join(n.Kill(), n.in.Close()) }
