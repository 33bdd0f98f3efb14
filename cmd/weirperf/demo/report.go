package demo

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/perf/netlab"
	"github.com/weirlb/weir/perf/netlab/workload"
)

// report prints the events of the demo, as they happen.
type report struct {
	out    io.Writer
	colour bool
	start  time.Time
}

func newReport(out io.Writer) *report {
	r := &report{out: out, start: time.Now()}
	if f, ok := out.(*os.File); ok && os.Getenv("NO_COLOR") == "" {
		_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
		r.colour = err == nil
	}
	return r
}

// SGR codes (ECMA-48 section 8.3.117).
const bold, red, green = "1", "31", "32"

func (r *report) paint(code, s string) string {
	if !r.colour {
		return s
	}
	return "\x1b[" + code + "m" + s + "\x1b[0m"
}

func (r *report) line(format string, args ...any) { fmt.Fprintf(r.out, format+"\n", args...) }

// topology draws the network of the demo.
func (r *report) topology() {
	r.line(`%s

  client     %s
    |
  edge node  %-10s edge-1 in zone-a, runs weir on eth0 and eth1
    |
  backends   %-10s web-edge,   a pod on the edge node itself
             %-10s web-zone-a, a node in the same zone
             %-10s web-zone-b, a node in another zone, behind a router

Every address exists in IPv6 too: 10.20.0.11 is fd20::11. Service %s is
reached by node port %d and by load balancer IP %s, which no interface
holds. The edge node's kernel does not forward between client and backends and
has no NAT rules for them. The client never retries.
`,
		r.paint(bold, "Weir demo"), netlab.Host4(netlab.ClientNet, 2), netlab.Host4(netlab.ClientNet, 1),
		backendAddr(0), backendAddr(1), backendAddr(2),
		serviceName, httpNodePort, netlab.Host4(netlab.LBNet, lbHost))
}

func backendAddr(i int) string { return netlab.Host4(backends[i].network, backends[i].host).String() }

// ready prints the features that weir run got from the kernel.
func (r *report) ready(s *api.Status) {
	var ifs []string
	for _, i := range s.Interfaces {
		ifs = append(ifs, fmt.Sprintf("%s (%s, %d of %d queues)", i.Name, i.Mode, i.BoundQueues, i.Queues))
	}
	r.line("weir run is ready: %d worker(s) on %s", len(s.Workers), strings.Join(ifs, ", "))
}

// phase prints a phase's table.
func (r *report) phase(p phase, res *result) {
	faults := res.faults(p)
	mark := r.paint(green, "ok")
	if len(faults) > 0 {
		mark = r.paint(red, "FAILED")
	}
	r.line("\n%s   tier %s   %s", r.paint(bold, fmt.Sprintf("(%c) %s", p.letter, p.title)), p.tier, mark)

	failures, p50, p99 := "failures", "p50", "p99"
	if !p.served() {
		failures = "refused"
	}
	header := fmt.Sprintf("  %-32s %8s %8s", "", "requests", failures)
	for _, b := range backends {
		header += fmt.Sprintf(" %10s", b.name)
	}
	r.line("%s %8s %8s", header, p50, p99)
	for _, row := range res.rows {
		r.row(row.stream.name, row.steady, !p.served() && !row.stream.keepAlive)
	}
	changing := &workload.Record{}
	for _, row := range res.rows {
		changing.Merge(row.changing)
	}
	if p.letter != 'a' {
		r.row("all, while the endpoints changed", changing, false)
	}
	for i, moved := range res.downloads {
		state := "unbroken"
		if res.broken[i] != nil {
			state = r.paint(red, "broken: "+res.broken[i].Error())
		}
		r.line("  long download %d: %s so far, %s", i+1, megabytes(moved), state)
	}
	for _, f := range faults {
		r.line("  %s %s", r.paint(red, "!"), f)
	}
}

func (r *report) row(name string, rec *workload.Record, refusals bool) {
	servers := rec.Servers()
	line := fmt.Sprintf("  %-32s %8d %8d", name, rec.Requests(), rec.Failed())
	for _, b := range backends {
		line += fmt.Sprintf(" %10d", servers[b.name])
	}
	p := rec.Percentile
	if refusals {
		p = rec.RefusalPercentile
	}
	r.line("%s %8s %8s", line, milliseconds(p(50)), milliseconds(p(99)))
}

func milliseconds(d time.Duration) string {
	if d == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f ms", float64(d)/float64(time.Millisecond))
}

func megabytes(n int64) string { return fmt.Sprintf("%.1f MB", float64(n)/1e6) }

// download prints a finished download.
func (r *report) download(d *download) {
	r.line("long download by %s: %s from %s through all phases, SHA-256 as it must be",
		d.name, megabytes(d.Moved()), d.Server())
}

// verdict prints the accounts and the result.
func (r *report) verdict(c counts, faults []string) {
	r.line("packets: the client sent %d and got %d, together %d;", c.clientSent, c.clientGot, c.client())
	r.line("         Weir's workers received %d and refused %d by themselves, and the kernel forwarded %d by Weir's flow table,",
		c.weirGot, c.refused, c.repeated)
	r.line("         together %d", c.through())
	if len(c.drops) > 0 {
		var drops []string
		for _, k := range sortedKeys(c.drops) {
			drops = append(drops, fmt.Sprintf("%s %d", k, c.drops[k]))
		}
		r.line("         refused or dropped, by reason: %s", strings.Join(drops, ", "))
	}
	took := time.Since(r.start).Round(time.Second)
	if len(faults) == 0 {
		r.line("\n%s  no request failed that had an endpoint, all traffic went through Weir (%s)",
			r.paint(bold+";"+green, "PASSED"), took)
		return
	}
	r.line("\n%s  (%s)", r.paint(bold+";"+red, "FAILED"), took)
	for _, f := range faults {
		r.line("  %s", f)
	}
}

// direct prints the phase of direct server return.
func (r *report) direct(results []direct, faults []string) {
	mark := r.paint(green, "ok")
	if len(faults) > 0 {
		mark = r.paint(red, "FAILED")
	}
	r.line("\n%s   mode ipip   %s", r.paint(bold, "(f) direct server return: an endpoint answers the client directly"), mark)
	r.line("  %-32s %9s %17s %19s   %17s", "", "download", "packets to Weir", "answers from Weir", "direct answers")
	for _, d := range results {
		r.line("  %-32s %5d MiB %17d %13.1f KiB   %13.1f MiB", "HTTP, "+d.name, directBytes>>20, d.requests,
			float64(d.byWeir)/(1<<10), float64(d.past)/(1<<20))
		if d.err == nil {
			r.line("  %s saw the client as %s", d.server, d.seenAs)
		}
	}
	r.line("")
}

// keep tells how to look around.
func (r *report) keep(s *site) {
	r.line(`
Everything is left running until Ctrl-C. From another terminal, as root:

  %[1]s status --admin-socket %[2]s
  nsenter --net=%[3]s curl http://%[4]s/
  nsenter --net=%[3]s curl -g 'http://[%[5]s]/'
  nsenter -t %[6]d -n -m sh          # a shell on the edge node
  tail -f %[7]s
  $EDITOR %[8]s/web.yaml   # Weir follows
`, s.program, s.socket, s.lab.Client.Path(), netlab.Host4(netlab.LBNet, lbHost), netlab.Host6(netlab.LBNet, lbHost),
		s.lab.Edge.Thread(), s.log, s.manifests)
}

func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }
