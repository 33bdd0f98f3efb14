// Package view renders the answers of the api package as text for a terminal:
// the output of `weir status`.
package view

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/cmd/weir/privilege"
	"github.com/weirlb/weir/lb/counter"
)

// Status writes s as text. With prev, an earlier status of the same process, it
// adds packets per second.
func Status(w io.Writer, s, prev *api.Status) error {
	b := &strings.Builder{}
	renderHead(b, s)
	renderProblems(b, s)
	renderInterfaces(b, s)
	renderWorkers(b, s, prev)
	renderCounts(b, "Drops", s.Drops, "none")
	renderDenyLists(b, s)
	renderFlowLog(b, s.FlowLog)
	renderNeighbors(b, s)
	_, err := io.WriteString(w, b.String())
	return err
}

func renderHead(b *strings.Builder, s *api.Status) {
	_, state := s.Condition()
	up := (time.Duration(s.UptimeSeconds) * time.Second).String()
	t := table(b)
	row(t, "Weir", fmt.Sprintf("%s  node %s  pid %d  up %s", s.Version, s.Node, s.PID, up))
	if len(s.Start) > 0 {
		row(t, "Start", startPhases(s.Start))
	}
	if !s.LastUpdated.IsZero() {
		state += fmt.Sprintf(", snapshot %d of %s", s.Snapshot, s.LastUpdated.Format(time.RFC3339))
	}
	row(t, "State", state)
	row(t, "Source", s.Discovery.Source)
	row(t, "Serving", fmt.Sprintf("%s, %s, %s",
		plural(s.Services, "Service"), plural(s.Frontends, "frontend"), plural(s.Endpoints, "endpoint")))
	for i, a := range s.NodePorts {
		label := ""
		if i == 0 {
			label = "Node ports"
		}
		row(t, label, fmt.Sprintf("%s (%s)", a.Address, a.Reason))
	}
	f := s.Flows
	row(t, "Flows", fmt.Sprintf("%d of %d (%s, %s)  created %d  expired %d  adopted %d  evicted %d  refused %d for ports, %d for room",
		f.Current, f.Max, percent(f.Current, f.Max), bytes(f.MemoryBytes), f.Created, f.Expired, f.Adopted, f.Evicted, f.NoPort, f.Full))
	if len(f.ByState) > 0 {
		row(t, "", joinCounts(f.ByState))
	}
	if p := f.SNATPorts; p.Count > 0 {
		why := ""
		if p.Reason != "" {
			why = ": " + p.Reason
		}
		row(t, "SNAT ports", fmt.Sprintf("%s, %d per endpoint%s", p.Ports, p.Count, why))
	}
	if p := s.Privileges; p != nil {
		row(t, "Privileges", privileges(p))
	}
	if len(s.Kernel) > 0 {
		row(t, "Kernel", kernelFeatures(s))
	}
	t.Flush()
}

// kernelFeatures counts the kernel features that are available and names the
// missing ones.
func kernelFeatures(s *api.Status) string {
	var missing []string
	for _, f := range s.Kernel {
		if !f.Available {
			missing = append(missing, f.Name)
		}
	}

	text := fmt.Sprintf("%d of %s", len(s.Kernel)-len(missing), plural(len(s.Kernel), "feature"))
	if len(missing) > 0 {
		text += "; missing: " + strings.Join(missing, ", ")
	}
	return text
}

func renderInterfaces(b *strings.Builder, s *api.Status) {
	b.WriteByte('\n')
	t := table(b)
	row(t, "INTERFACE", "HOOK", "MODE", "DRIVER", "QUEUES", "CHECKSUM", "MTU", "PROGRAM", "KERNEL", "LOST")
	for _, i := range s.Interfaces {
		name, program := i.Name, "unpinned"
		if i.HostVeth {
			name += " (host veth)"
		}
		switch {
		case i.VLAN != 0:
			name += fmt.Sprintf(" (VLAN %d of %s)", i.VLAN, i.Device)
		case i.Interface != "" && i.Interface != i.Name:
			name += fmt.Sprintf(" (of %s)", i.Interface)
		}
		if i.Inactive {
			name += " (inactive)"
		}
		if i.Pinned {
			program = "pinned"
		}
		queues := fmt.Sprintf("%d/%d", i.BoundQueues, i.Queues)
		row(t, name, dash(i.Hook), modes(&i), dash(i.Driver), queues, dash(i.TxChecksum), number(i.MTU), program,
			repeated(&i), joinCounts(lost(&i)))
	}
	for _, a := range s.Absent {
		row(t, a.Name, "-", "absent", "-", "-", "-", "-", "-", "-", "-")
	}
	t.Flush()
	for _, i := range s.Interfaces {
		if i.HookReason != "" {
			fmt.Fprintf(b, "Hook %s of %s: %s\n", i.Hook, i.Name, printable(i.HookReason))
		}
	}
}

// repeated is the share of an interface's packets that the kernel forwards.
func repeated(i *api.Interface) string {
	if i.Repeated == nil {
		return "-"
	}
	return fmt.Sprintf("%.1f %%", 100*i.Repeated.Share())
}

// modes is the mode of the interface, or all modes if the queues differ.
func modes(i *api.Interface) string {
	n := map[string]uint64{}
	for _, s := range i.Sockets {
		n[s.Mode]++
	}
	if len(n) < 2 {
		return i.Mode
	}
	return joinCounts(n)
}

// lost are the packets that the kernel counted as lost before a worker saw
// them, and behind a redirect.
func lost(i *api.Interface) map[string]uint64 {
	m := map[string]uint64{"pair": i.Lost.Pair, "transmit": i.Lost.Transmit}
	for _, s := range i.Sockets {
		m["dropped"] += s.RxDropped
		m["ring-full"] += s.RxRingFull
		m["no-frame"] += s.RxFillRingEmpty
		m["invalid"] += s.RxInvalidDescs + s.TxInvalidDescs
		m["rejected"] += s.Rejected
	}
	return m
}

func renderWorkers(b *strings.Builder, s, prev *api.Status) {
	b.WriteByte('\n')
	t := table(b)
	head := []string{"WORKER", "CPU", "BUSY", "RX PACKETS", "RX BYTES", "BATCH", "TX PACKETS", "TX BYTES",
		"NEW FLOWS", "HANDOFF", "PUNTED", "DROPS"}
	if prev != nil {
		head = append(head, "RX/s", "TX/s")
	}
	row(t, head...)
	for i, w := range s.Workers {
		cpu := "-"
		if w.CPU >= 0 {
			cpu = fmt.Sprint(w.CPU)
		}
		n := &w.Counters
		cells := []string{
			fmt.Sprint(w.ID), cpu, busy(&w, s, prev, i),
			fmt.Sprint(n[counter.RxPackets]), bytes(n[counter.RxBytes]),
			mean(n[counter.RxPackets], n[counter.Batches]),
			fmt.Sprint(n[counter.TxPackets]), bytes(n[counter.TxBytes]), fmt.Sprint(n[counter.NewFlows]),
			fmt.Sprint(n[counter.Handoff]), fmt.Sprint(n[counter.Punted]), fmt.Sprint(api.Sum(w.Drops)),
		}
		if prev != nil && i < len(prev.Workers) {
			seconds, before := s.UptimeSeconds-prev.UptimeSeconds, &prev.Workers[i].Counters
			for _, c := range []counter.Counter{counter.RxPackets, counter.TxPackets} {
				cells = append(cells, rate(n[c], before[c], seconds))
			}
		}
		row(t, cells...)
	}
	t.Flush()
}

// busy is the busy share of a worker: since prev, or since the start.
func busy(w *api.Worker, s, prev *api.Status, i int) string {
	share := w.BusyShare
	if prev != nil && i < len(prev.Workers) && s.UptimeSeconds > prev.UptimeSeconds {
		share = w.BusySince(&prev.Workers[i].Counters, s.UptimeSeconds-prev.UptimeSeconds)
	}
	return fmt.Sprintf("%.1f %%", 100*share)
}

func mean(n, of uint64) string {
	if of == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f", float64(n)/float64(of))
}

func renderCounts(b *strings.Builder, title string, m map[string]uint64, none string) {
	b.WriteByte('\n')
	names := slices.SortedFunc(maps.Keys(m), func(x, y string) int {
		return cmp.Or(cmp.Compare(m[y], m[x]), cmp.Compare(x, y))
	})
	names = slices.DeleteFunc(names, func(n string) bool { return m[n] == 0 })
	if len(names) == 0 {
		fmt.Fprintf(b, "%s: %s\n", title, none)
		return
	}
	fmt.Fprintf(b, "%s:\n", title)
	t := table(b)
	for _, n := range names {
		row(t, "  "+n, fmt.Sprint(m[n]))
	}
	t.Flush()
}

func renderDenyLists(b *strings.Builder, s *api.Status) {
	if len(s.DenyLists) == 0 {
		return
	}
	b.WriteByte('\n')
	t := table(b)
	row(t, "DENY LIST", "PREFIXES", "PACKETS", "ENDED FLOWS")
	for _, l := range s.DenyLists {
		row(t, l.Name, fmt.Sprint(l.Prefixes), fmt.Sprint(l.Packets), fmt.Sprint(l.EndedFlows))
	}
	t.Flush()
}

func renderFlowLog(b *strings.Builder, l *api.FlowLog) {
	if l == nil {
		return
	}
	fmt.Fprintf(b, "\nFlow log: %d records, %d lost for room, %s skipped\n", l.Records, l.Lost, plural(int(l.Skipped), "connection"))
	t := table(b)
	row(t, "FLOW LOG", "SENT", "LOST", "FAULT")
	for _, to := range l.Targets {
		row(t, to.Name, fmt.Sprint(to.Sent), fmt.Sprint(to.Lost), dash(to.Fault))
	}
	t.Flush()
}

// maxNeighbors is how many next hops the text shows; JSON has them all.
const maxNeighbors = 32

func renderNeighbors(b *strings.Builder, s *api.Status) {
	if len(s.Neighbors) == 0 {
		return
	}
	b.WriteByte('\n')
	t := table(b)
	row(t, "NEXT HOP", "INTERFACE", "MAC", "STATE")
	for i, n := range s.Neighbors {
		if i == maxNeighbors {
			row(t, fmt.Sprintf("... and %d more", len(s.Neighbors)-i))
			break
		}
		row(t, n.Address.String(), n.Interface, dash(n.MAC), n.State)
	}
	t.Flush()
}

func table(b *strings.Builder) *tabwriter.Writer { return tabwriter.NewWriter(b, 0, 8, 2, ' ', 0) }

func row(t *tabwriter.Writer, cells ...string) {
	for i := range cells {
		cells[i] = printable(cells[i])
	}
	fmt.Fprintln(t, strings.Join(cells, "\t"))
}

func joinCounts(m map[string]uint64) string {
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		if m[k] > 0 {
			parts = append(parts, fmt.Sprintf("%s %d", k, m[k]))
		}
	}
	return cmp.Or(strings.Join(parts, ", "), "-")
}

func dash(s string) string { return cmp.Or(s, "-") }

func number(n int) string {
	if n == 0 {
		return "-"
	}
	return fmt.Sprint(n)
}

// plural is n with a noun; more is the plural if that is not the noun and an s.
func plural(n int, what string, more ...string) string {
	switch {
	case n == 1:
		return "1 " + what
	case len(more) > 0:
		return fmt.Sprintf("%d %s", n, more[0])
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func percent(n, of uint64) string {
	if of == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f %%", 100*float64(n)/float64(of))
}

func rate(now, before uint64, seconds float64) string {
	if seconds <= 0 {
		return "-"
	}
	return fmt.Sprintf("%.0f", api.PerSecond(now, before, seconds))
}

// bytes is n in binary units (IEC 80000-13).
func bytes(n uint64) string {
	if n < 1024 {
		return fmt.Sprintf("%d B", n)
	}
	v, unit := float64(n), 0
	for v >= 1024 && unit < 5 {
		v /= 1024
		unit++
	}
	return fmt.Sprintf("%.1f %ciB", v, " KMGTP"[unit])
}

func privileges(p *privilege.Status) string {
	out := strings.Join(p.Capabilities, " ")
	for _, part := range []struct{ name, missing string }{{"seccomp", p.Seccomp}, {"Landlock", p.Landlock}} {
		if part.missing == "" {
			out += ", " + part.name
		} else {
			out += ", no " + part.name + ": " + part.missing
		}
	}
	return out
}
