package peer

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"

	"github.com/weirlb/weir/perf/netlab"
	"github.com/weirlb/weir/perf/testbed"
)

// NFTables is the kernel's NAT with the rules that kube-proxy's nftables mode
// makes (kubernetes 1.31 and later) for a LoadBalancer Service with external
// traffic policy Cluster: see rules.go.
type NFTables struct{}

func (NFTables) Name() string          { return "nftables" }
func (NFTables) Carries(Protocol) bool { return true }

// Available tries the kernel: no program is needed.
func (NFTables) Available() error {
	if _, err := os.Stat(conntrackMax); err != nil {
		return errors.New("the kernel has no connection tracking (CONFIG_NF_CONNTRACK, modprobe nf_conntrack)")
	}
	return nil
}

// Start installs the rules.
func (NFTables) Start(_ context.Context, b *testbed.Bed, c Config) (_ Running, err error) {
	r := &ruleset{node: b.Node}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.Stop())
		}
	}()
	if err := r.makeRoom(c.MaxFlows); err != nil {
		return nil, err
	}
	conn, err := nftables.New(nftables.WithNetNSFd(int(b.Node.Handle())))
	if err != nil {
		return nil, fmt.Errorf("nftables: %w", err)
	}
	if err := install(conn, c.Services); err != nil {
		return nil, err
	}
	r.installed = true
	if r.before, err = conntrackStats(b.Node); err != nil {
		return nil, err
	}
	return r, nil
}

// ruleset is the rules at work, and the sysctls changed for them.
type ruleset struct {
	node      *netlab.Namespace
	installed bool
	before    map[string]uint64
	restore   []setting
}

type setting struct{ path, value string }

// Settings of connection tracking that only the first network namespace has.
const (
	conntrackMax     = "/proc/sys/net/netfilter/nf_conntrack_max"
	conntrackBuckets = "/proc/sys/net/netfilter/nf_conntrack_buckets"
)

// makeRoom sets connection tracking up as kube-proxy does for so many
// connections: the limit, and a bucket for every four. Both are the whole
// machine's, so they are put back by Stop; neither is made smaller.
func (r *ruleset) makeRoom(flows int) error {
	for _, s := range []struct {
		path string
		want int
	}{{conntrackMax, flows + flows/8}, {conntrackBuckets, flows / 4}} {
		b, err := os.ReadFile(s.path)
		if err != nil {
			return err
		}
		old := strings.TrimSpace(string(b))
		if have, err := strconv.Atoi(old); err != nil || have == 0 || have >= s.want {
			continue // 0: no limit
		}
		if err := os.WriteFile(s.path, []byte(strconv.Itoa(s.want)), 0); err != nil {
			return fmt.Errorf("make room for %d connections (run in the machine's own network namespace): %w", flows, err)
		}
		r.restore = append(r.restore, setting{s.path, old})
	}
	return nil
}

func (r *ruleset) Direct() bool                { return false }
func (r *ruleset) Processes() []int            { return nil }
func (r *ruleset) Details() map[string]float64 { return nil }

// Refused counts packets for which there was no room or no port.
func (r *ruleset) Refused() (map[string]uint64, error) {
	now, err := conntrackStats(r.node)
	if err != nil {
		return nil, err
	}
	refused := map[string]uint64{}
	for _, name := range []string{"drop", "early_drop", "insert_failed"} {
		refused["nf_conntrack "+name] = now[name] - r.before[name]
	}
	return refused, nil
}

// Stop removes the rules and every connection, and puts the machine's settings
// back.
func (r *ruleset) Stop() error {
	var errs []error
	if r.installed {
		conn, err := nftables.New(nftables.WithNetNSFd(int(r.node.Handle())))
		if err == nil {
			conn.DelTable(&nftables.Table{Family: nftables.TableFamilyIPv4, Name: tableName})
			err = conn.Flush()
		}
		errs = append(errs, err, r.node.Do(func() error { return netlink.ConntrackTableFlush(netlink.ConntrackTable) }))
		r.installed = false
	}
	for _, s := range r.restore {
		errs = append(errs, os.WriteFile(s.path, []byte(s.value), 0))
	}
	r.restore = nil
	return errors.Join(errs...)
}

// conntrackStats are the counters of connection tracking in a namespace.
func conntrackStats(n *netlab.Namespace) (map[string]uint64, error) {
	var sums map[string]uint64
	err := n.Do(func() error {
		b, err := os.ReadFile("/proc/thread-self/net/stat/nf_conntrack")
		if err == nil {
			sums, err = parseConntrackStats(string(b))
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("counters of nf_conntrack: %w", err)
	}
	return sums, nil
}

// parseConntrackStats sums the lines of all CPUs; the first line has the names.
func parseConntrackStats(text string) (map[string]uint64, error) {
	head, rows, _ := strings.Cut(text, "\n")
	names := strings.Fields(head)
	sums := map[string]uint64{}
	for row := range strings.Lines(rows) {
		values := strings.Fields(row)
		if len(values) != len(names) {
			return nil, fmt.Errorf("%d names, %d values", len(names), len(values))
		}
		for i, v := range values {
			n, err := strconv.ParseUint(v, 16, 64)
			if err != nil {
				return nil, err
			}
			sums[names[i]] += n
		}
	}
	return sums, nil
}
