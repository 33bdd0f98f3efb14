package fleet

import (
	"context"
	"errors"
	"os/exec"
	"runtime"
	"syscall"
	"time"

	"github.com/weirlb/weir/cmd/weir/api"
)

// busyFor is how long the CPUs are kept busy.
const busyFor = time.Minute

// occupy keeps every CPU busy for d, with two processes of the usual priority for each.
func occupy(ctx context.Context, d time.Duration) error {
	// Nothing is left spinning by a demo that is killed: the children end with this thread.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var errs []error
	var busy []*exec.Cmd
	for range 2 * runtime.NumCPU() {
		cmd := exec.Command("sh", "-c", "while :; do :; done")
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		if err := cmd.Start(); err != nil {
			errs = append(errs, err)
			break
		}
		busy = append(busy, cmd)
	}
	if len(errs) == 0 {
		errs = append(errs, wait(ctx, d))
	}
	for _, cmd := range busy {
		errs = append(errs, cmd.Process.Kill())
		_ = cmd.Wait() // says that it was killed
	}
	return errors.Join(errs...)
}

// ended counts the sessions of all nodes that have ended. Of a step of a single node n it is 0:
// sessions end that are to end.
func (b *bed) ended(ctx context.Context, n *node) (total uint64, err error) {
	if n != nil {
		return 0, nil
	}
	for _, n := range b.nodes {
		var s *api.Status
		if s, err = n.admin.Status(ctx); err != nil {
			return 0, err
		}
		for i := range s.Announce.Peers {
			total += s.Announce.Peers[i].Ends
		}
	}
	return total, nil
}
