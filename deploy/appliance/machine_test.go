package appliance

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/weirlb/weir/perf/netlab/patience"
	"github.com/weirlb/weir/perf/vm"
)

// within suffices for a boot or an update without KVM, on a quiet machine.
const within = 5 * time.Minute

// machine is a virtual machine. Its console is its standard output.
type machine struct {
	name string
	args []string
	file string // with all that the console has said, of earlier boots too
	gone chan struct{}

	mu      sync.Mutex
	process *os.Process
	wasCut  bool
	lines   []string
}

// boot starts a virtual machine, which ends with the lab.
func (l *lab) boot(t *testing.T, name string, memory int, args ...string) *machine {
	t.Helper()
	accelerator, _ := vm.Accelerator()
	all := append([]string{"-n", "10", vm.Emulator, "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-machine", "q35",
		"-smp", "2", "-m", fmt.Sprint(memory), "-serial", "stdio", "-device", "virtio-rng-pci"}, accelerator...)
	m := &machine{name: name, args: append(all, args...), gone: make(chan struct{}), file: filepath.Join(consoles(t), name)}
	log, err := os.OpenFile(m.file, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	must(t, err)
	started := make(chan error, 1)
	go m.run(log, started)
	must(t, <-started)
	l.atEnd(m.cut)
	return m
}

// run runs the emulator until the machine is cut. The emulator ends with a reset of the machine, and
// begins again: after a reset within the emulator, a CPU may be left without a timer.
func (m *machine) run(log *os.File, started chan<- error) {
	defer close(m.gone)
	defer log.Close()
	runtime.LockOSThread() // the signal of Pdeathsig comes when the thread that forked ends
	for {
		cmd := exec.Command("nice", m.args...)
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
		cmd.Stderr = log
		out, err := cmd.StdoutPipe()
		if err == nil {
			err = m.start(cmd)
		}
		select {
		case started <- err:
		default:
		}
		if err != nil {
			return
		}
		m.read(out, log)
		if cmd.Wait() != nil {
			return
		}
	}
}

// start starts a command, unless the machine was cut.
func (m *machine) start(cmd *exec.Cmd) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.wasCut {
		return errors.New("the power was cut")
	}
	err := cmd.Start()
	m.process = cmd.Process
	return err
}

// consoles is the folder of the machines' consoles, which are kept for whoever looks for the
// reason of a failure.
func consoles(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../../bin/appliance/consoles")
	must(t, err)
	must(t, os.MkdirAll(dir, 0o755))
	return dir
}

func (m *machine) read(out io.Reader, log io.Writer) {
	s := bufio.NewScanner(out)
	s.Buffer(nil, 1<<20)
	for s.Scan() {
		line := strings.TrimRight(s.Text(), "\r")
		fmt.Fprintln(log, line)
		m.mu.Lock()
		m.lines = append(m.lines, line)
		m.mu.Unlock()
	}
}

// cut ends the machine as a power cut does: at once.
func (m *machine) cut() {
	m.mu.Lock()
	m.wasCut = true
	_ = m.process.Kill()
	m.mu.Unlock()
	<-m.gone
}

// mark is the place on the console from which says looks on.
func (m *machine) mark() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.lines)
}

// says waits until the console has said texts, one after another, from a mark on.
func (m *machine) says(t *testing.T, mark int, texts ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience.For(within))
	defer cancel()
	for _, text := range texts {
		for found := false; !found; {
			m.mu.Lock()
			for ; mark < len(m.lines) && !found; mark++ {
				found = strings.Contains(m.lines[mark], text)
			}
			m.mu.Unlock()
			if found {
				break
			}
			select {
			case <-m.gone:
				t.Fatalf("%s ended before it said %q: see %s", m.name, text, m.file)
			case <-ctx.Done():
				t.Fatalf("%s did not say %q: see %s", m.name, text, m.file)
			case <-time.After(100 * time.Millisecond):
			}
		}
	}
}

// eventually repeats f until it succeeds.
func eventually(t *testing.T, f func() error) {
	t.Helper()
	var err error
	for deadline := time.Now().Add(patience.For(within)); time.Now().Before(deadline); time.Sleep(500 * time.Millisecond) {
		if err = f(); err == nil {
			return
		}
	}
	t.Fatal(err)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// run runs a program to its end.
func run(t *testing.T, name string, args ...string) {
	t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
}
