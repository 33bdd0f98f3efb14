package lan

import (
	"fmt"
	"io"
	"time"

	"github.com/weirlb/weir/perf/netlab"
)

// report prints the progress of the demo, as it happens.
type report struct {
	out   io.Writer
	start time.Time
}

func newReport(out io.Writer) *report { return &report{out, time.Now()} }

func (r *report) line(format string, args ...any) { fmt.Fprintf(r.out, format+"\n", args...) }

// topology draws the network of the demo.
func (r *report) topology() {
	r.line(`Weir LAN demo

  client     %s
    |
  switch     no router
    |
  nodes      %s to .%d: a Weir each
  endpoints  %s and .%d

Every address exists in IPv6 too. Service l2dsr has %s to .%d, and endpoints
answer clients directly. Service nat has %s to .%d, and answers pass the node
that translates. The client never retries.
`, netlab.Host4(netlab.LANNet, netlab.LANClient),
		netlab.Host4(netlab.LANNet, netlab.LANFirstNode), netlab.LANFirstNode+nodes-1,
		netlab.Host4(netlab.LANNet, servers[0]), servers[1],
		netlab.Host4(netlab.LANNet, modes[0].first), modes[0].first+addressesEach-1,
		netlab.Host4(netlab.LANNet, modes[1].first), modes[1].first+addressesEach-1)
}

const columns = "%-26s %9s %8s   %-5s %6s %5s   %6s %6s   %7s   %11s %5s"

// header begins the table.
func (r *report) header() {
	r.line("\nEach row: an IPv4 and an IPv6 address, at first of the node that leaves\n")
	r.line(columns, "", "addresses", "", "", "UDP", "", "new", "", "longest", "established", "")
	r.line(columns, "step", "moved", "after", "mode", "probes", "lost", "TCP", "failed", "gap", "connections", "lost")
}

// step prints the rows of a step.
func (r *report) step(res *result) {
	title, moved, after := res.title(), fmt.Sprint(res.moved), milliseconds(res.after)
	if res.moved == 0 {
		after = "" // that of the node's start
	}
	for i := range res.modes {
		o := &res.modes[i]
		r.line(columns, title, moved, after, modes[i].name, fmt.Sprint(o.datagrams.Sent), fmt.Sprint(o.datagrams.Lost),
			fmt.Sprint(o.opened.Sent), fmt.Sprint(o.opened.Lost), milliseconds(max(o.datagrams.Gap, o.opened.Gap)),
			fmt.Sprint(o.established), fmt.Sprint(o.lost))
		title, moved, after = "", "", ""
	}
}

func milliseconds(d time.Duration) string {
	return fmt.Sprintf("%d ms", d.Round(time.Millisecond).Milliseconds())
}

// verdict prints the result.
func (r *report) verdict(faults []string) {
	took := time.Since(r.start).Round(time.Second)
	if len(faults) == 0 {
		r.line(`
PASSED  planned moves lost no probe and no new connection, after the death another node served
        within a second, and in mode l2dsr no established connection was lost (%s)
        nat: the translation of a connection is in the memory of one node. It is lost when
        another node owns the address.`, took)
		return
	}
	r.line("\nFAILED  (%s)", took)
	for _, f := range faults {
		r.line("  %s", f)
	}
}

// keep tells how to look around.
func (r *report) keep(b *bed) {
	a := modes[0].addresses(netlab.Host4)[0]
	r.line(`
Everything is left running until Ctrl-C. From another terminal, as root:

  nsenter --net=%[1]s ip neighbor
  %[2]s status --announce --admin-socket %[3]s/weir.sock
  %[2]s explain --address %[4]s --admin-socket %[3]s/weir.sock
  %[2]s drain self --admin-socket %[3]s/weir.sock
`, b.Client.Path(), b.weir, b.nodes[0].dir, a)
}
