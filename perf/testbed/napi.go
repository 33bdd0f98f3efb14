package testbed

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/weirlb/weir/perf/netlab"
)

// napiThread is the kernel thread that receives for an interface.
type napiThread struct {
	link string
	pid  int
	cpu  int
}

// placeNAPI gives interfaces threads that receive, and each thread a CPU.
func (b *Bed) placeNAPI() error {
	type end struct {
		n    *netlab.Namespace
		link string
	}
	front, back := end{b.Node, NodeFront}, end{b.Node, NodeBack}
	client, backend := end{b.Client, ClientLink}, end{b.Backend, BackendLink}
	for _, p := range []struct {
		end
		from   end // the other end of the pair
		onNode bool
	}{{front, client, true}, {back, backend, true}, {client, front, false}, {backend, back, false}} {
		if !p.onNode && b.Setting == Default {
			continue
		}
		err := segmentationOff(p.from.n, p.from.link)
		if err != nil {
			return err
		}
		pid, err := startNAPIThread(p.n, p.link)
		if err != nil {
			return err
		}
		t := napiThread{p.link, pid, b.LBCore}
		if p.onNode {
			err = first(pid)
		} else {
			t.cpu = b.LoadCore
			if err = realTime(pid); err == nil {
				err = moderate(p.n, p.link)
			}
		}
		if err != nil {
			return err
		}
		if err := pin(pid, t.cpu); err != nil {
			return fmt.Errorf("pin the thread that receives for %s: %w", p.link, err)
		}
		b.napi = append(b.napi, t)
	}
	return nil
}

// segmentationOff has an interface send no packets that are to be segmented. A veth that
// may send them bypasses the peer's NAPI, and so the thread, for
// every packet.
func segmentationOff(n *netlab.Namespace, link string) error {
	return n.SetOffloads(link, map[string]bool{
		"tx-tcp-segmentation": false, "tx-tcp6-segmentation": false,
		"tx-tcp-ecn-segmentation": false, "tx-tcp-mangleid-segmentation": false,
	})
}

// startNAPIThread switches an interface to receiving in a thread. A veth has
// something to receive with only while generic receive offload is on or an XDP
// program is attached.
func startNAPIThread(n *netlab.Namespace, link string) (int, error) {
	before, err := napiThreads(link)
	if err != nil {
		return 0, err
	}
	err = n.SetOffloads(link, map[string]bool{"rx-gro": true})
	if err == nil {
		err = n.Inside(func() error {
			return os.WriteFile(filepath.Join("/sys/class/net", link, "threaded"), []byte("1"), 0)
		})
	}
	if err != nil {
		return 0, fmt.Errorf("receive for %s in a thread: %w", link, err)
	}
	for deadline := time.Now().Add(time.Second); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		now, err := napiThreads(link)
		if err != nil {
			return 0, err
		}
		for pid := range now {
			if !before[pid] {
				return pid, nil
			}
		}
	}
	return 0, fmt.Errorf("receive for %s in a thread: no thread has appeared", link)
}

// moderate has the receiving thread of an interface look for packets by a timer, as a NIC
// with interrupt moderation does. Without it every packet would wake the thread, at the
// cost of the sender. A machine at the other end of a wire costs the sender nothing.
func moderate(n *netlab.Namespace, link string) error {
	const timeout, rounds = "20000", "100" // ns; looks without a packet before it sleeps
	err := n.Inside(func() error {
		dir := filepath.Join("/sys/class/net", link)
		return errors.Join(
			os.WriteFile(filepath.Join(dir, "gro_flush_timeout"), []byte(timeout), 0),
			os.WriteFile(filepath.Join(dir, "napi_defer_hard_irqs"), []byte(rounds), 0))
	})
	if err != nil {
		return fmt.Errorf("moderate receiving for %s: %w", link, err)
	}
	return nil
}

// napiThreads are the threads that receive for interfaces of this name, in
// whatever namespace.
func napiThreads(link string) (map[int]bool, error) {
	found := map[int]bool{}
	procs, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	for _, p := range procs {
		pid, err := strconv.Atoi(p.Name())
		if err != nil {
			continue
		}
		name, err := os.ReadFile(filepath.Join("/proc", p.Name(), "comm"))
		if err == nil && strings.HasPrefix(string(name), "napi/"+link+"-") {
			found[pid] = true
		}
	}
	return found, nil
}
