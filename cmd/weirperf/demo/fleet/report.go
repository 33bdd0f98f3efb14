package fleet

import (
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
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
	r.line(`Weir fleet demo

  client     %s
    |
  router     FRR, AS 65000: ECMP by the five-tuple over the nodes that announce
    |
  nodes      %s to .%d, AS 65001: a Weir each
    |
  endpoints  %s to .%d

Every address exists in IPv6 too. Service ipip has load balancer IP %s, and
endpoints answer clients directly. Service nat has %s, and answers pass the node
that translates. The client never retries.
`, netlab.Host4(netlab.FleetClientNet, 2),
		netlab.Host4(netlab.FleetNet, netlab.FleetFirstNode), netlab.FleetFirstNode+nodes-1,
		netlab.Host4(netlab.FleetNet, servers[0]), servers[len(servers)-1], modes[0].addresses()[0], modes[1].addresses()[0])
}

const columns = "%-30s %12s   %-5s %11s %6s   %6s %6s   %13s"

// header begins the table.
func (r *report) header(connections int) {
	r.line("%d established connections of each mode, in use; others are opened all the time\n", connections)
	r.line(columns, "", "router", "", "established", "", "new", "", "longest")
	r.line(columns, "step", "follows", "mode", "connections", "lost", "", "failed", "wait")
}

// step prints the rows of a step.
func (r *report) step(res *result) {
	title, follows := res.title(), milliseconds(res.follows)
	for i := range res.modes {
		o := &res.modes[i]
		r.line(columns, title, follows, modes[i].name, fmt.Sprint(o.established), fmt.Sprint(o.lost),
			fmt.Sprint(o.opened.Requests()), fmt.Sprint(o.opened.Failed()), milliseconds(o.longest))
		title, follows = "", ""
	}
}

// medians prints how long the router took, over all rounds.
func (r *report) medians(all []result) {
	r.line("\n%-30s %12s %12s %12s %8s", "router follows after", "median", "least", "most", "samples")
	samples := map[string][]time.Duration{}
	var titles []string
	for i := range all {
		title := all[i].title()
		if samples[title] == nil {
			titles = append(titles, title)
		}
		samples[title] = append(samples[title], all[i].follows)
	}
	for _, title := range titles {
		d := slices.Sorted(slices.Values(samples[title]))
		r.line("%-30s %12s %12s %12s %8d", title, milliseconds(d[len(d)/2]), milliseconds(d[0]), milliseconds(d[len(d)-1]), len(d))
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
PASSED  in mode ipip no established connection was lost, and no new connection failed (%s)
        nat: the translation of a connection is in the memory of one node. It is lost when
        the router sends the connection to another node.`, took)
		return
	}
	r.line("\nFAILED  (%s)", took)
	for _, f := range faults {
		r.line("  %s", f)
	}
}

// keep tells how to look around.
func (r *report) keep(b *bed) {
	var sockets []string
	for _, n := range b.nodes {
		sockets = append(sockets, "--from "+n.dir+"/weir.sock")
	}
	v := netip.AddrPortFrom(modes[0].addresses()[0], httpPort)
	r.line(`
Everything is left running until Ctrl-C. From another terminal, as root:

  vtysh --vty_socket %[1]s -c 'show bgp ipv4'
  nsenter --net=%[2]s ip route
  nsenter --net=%[3]s curl http://%[4]s/
  %[5]s drain self --admin-socket %[6]s/weir.sock
  %[5]s explain --address %[7]s --admin-socket %[6]s/weir.sock
  %[5]s explain --fleet %[8]s
`, b.router.Dir(), b.Router.Path(), b.Client.Path(), v, b.weir, b.nodes[0].dir, v.Addr(), strings.Join(sockets, " "))
}
