package kubernetes

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/onsi/ginkgo/v2"

	"github.com/weirlb/weir/cmd/weirperf/machine"
	"github.com/weirlb/weir/perf/netlab"
	"github.com/weirlb/weir/perf/netlab/labtest"
	"github.com/weirlb/weir/perf/netlab/router"
)

func TestCases(t *testing.T) {
	labtest.Require(t)
	bin, weir := requireBinaries(t)
	must(t, router.FRRAvailable())
	began := time.Now()
	b := newBed(t, bin, weir)
	b.startController()
	setUp := time.Since(began)
	var lists [][]string
	for _, name := range controls {
		lists = append(lists, []string{name})
	}
	control := b.suites("control", lists)
	for _, name := range controls {
		if r := find(control, name); r.Result != "failed" {
			t.Errorf("%s without Weir: %q", name, r.Result)
		}
	}
	version := b.startWeir()
	records := b.suites("suite", cases)
	// Where the scheduler put the client on the node that it asks, Weir served nothing: once more, elsewhere.
	b.avoidFirst(true)
	for round := 1; round <= 4; round++ {
		again := unserved(records)
		if len(again) == 0 {
			break
		}
		records = append(b.suites(fmt.Sprint("again", round, "-"), [][]string{again}), records...)
	}
	b.avoidFirst(false)
	must(t, b.Router.SetSysctl("net/ipv4/fib_multipath_hash_policy", "0"))
	records = append(records, b.suites("by-address", [][]string{byAddress})...)
	file := ""
	if results := os.Getenv("WEIR_CONFORMANCE_RESULTS"); results != "" {
		file = filepath.Join(results, "conformance-kubernetes.txt")
	}
	text := b.report(records, version) + fmt.Sprintf("\nThe cluster was ready after %.0f s, the last case over after %.0f s.\n%s", setUp.Seconds(), time.Since(began).Seconds(), lastRun(file))
	var out strings.Builder
	out.WriteString(text)
	left(&out)
	t.Log("\n" + out.String())
	if file != "" {
		must(t, os.WriteFile(file, []byte(out.String()), 0o644))
	}
}

// suites runs lists of cases beside each other, a process at the client each, and returns their outcomes.
func (b *bed) suites(name string, lists [][]string) (out []record) {
	b.t.Helper()
	var sockets, files []string
	for i := range nodeCount {
		sockets = append(sockets, b.socket(i))
	}
	logs := os.Getenv("WEIR_CONFORMANCE_LOGS") // a directory; empty: none are kept
	if logs == "" {
		logs = b.Dir()
	}
	var running []*netlab.Daemon
	for i, list := range lists {
		id := fmt.Sprint(name, i+1)
		files = append(files, b.path(id+".records"))
		cmd := exec.Command(os.Args[0], "-test.run", "^TestSuite$", "-test.v", "-test.timeout", "0")
		cmd.Env = append(os.Environ(), "KUBECONFIG="+b.kubeconfig(), casesFile+"="+b.write(id+".cases", strings.Join(list, "\n")),
			recordsFile+"="+files[i], kubectlFile+"="+filepath.Join(b.bin, "kubectl"), socketFiles+"="+strings.Join(sockets, ","))
		d, err := b.Client.StartDaemon(cmd, filepath.Join(logs, id+".log"))
		must(b.t, err)
		running = append(running, d)
	}
	for i, d := range running {
		_ = d.Err() // of a failed case; the records tell
		if _, err := os.Stat(files[i]); errors.Is(err, os.ErrNotExist) {
			b.t.Fatalf("a process of the suite ended early:\n%s", d.LogTail(30))
		}
		out = append(out, readRecords(b.t, files[i])...)
	}
	return out
}

// evident reports whether Weir served the case.
func (r record) evident() bool { return r.Connections+r.Refused > 0 || r.Checks == nodeCount }

// unserved are the cases that passed without Weir.
func unserved(records []record) (out []string) {
	for _, name := range allCases() {
		if r := find(records, name); r.Result == "passed" && !r.evident() {
			out = append(out, name)
		}
	}
	return out
}

// find returns the first record of a case, which is that of the last run.
func find(records []record, name string) record {
	for _, r := range records {
		if full := strings.TrimPrefix(r.Case, "[sig-network] "); full == name || strings.HasPrefix(full, name+" [") {
			return r
		}
	}
	return record{Result: "not run"}
}

// report says which cases passed, and what Weir served in each. A case of which Weir served nothing is not counted, and
// fails the test.
func (b *bed) report(records []record, version string) string {
	b.t.Helper()
	server, err := b.client.Discovery().ServerVersion()
	must(b.t, err)
	var out strings.Builder
	fmt.Fprintf(&out, "make conformance\n\n%s\nKubernetes %s: cases of k8s.io/kubernetes/test/e2e/network, and the programs of the cluster\n%s; weir %s\n%s\n\n",
		time.Now().UTC().Format(time.DateOnly), server.GitVersion, packages("containerd", "runc", "containernetworking-plugins", "frr"), version, host())
	fmt.Fprintf(&out, "%-11s %8s %12s %8s %7s  case\n", "result", "seconds", "connections", "refused", "checks")
	all, passed := allCases(), 0
	for _, name := range all {
		r := find(records, name)
		if !r.evident() && r.Result == "passed" {
			r.Result = "not counted"
		}
		if r.Result == "passed" {
			passed++
		}
		if r.Result != "passed" {
			b.t.Errorf("%s: %s: %s", name, r.Result, r.Reason)
		}
		fmt.Fprintf(&out, "%-11s %8.1f %12d %8d %7d  %s\n", r.Result, r.Seconds, r.Connections, r.Refused, r.Checks, strings.ReplaceAll(name, "[Feature:LoadBalancer] ", ""))
	}
	fmt.Fprintf(&out, "\n%d of %d passed.\nconnections: those that Weir made for Services of the case's namespace, on all nodes.\n"+
		"refused: packets to these that Weir refused or dropped, by source range, policy or for lack of endpoints.\n"+
		"checks: nodes on which kube-proxy could not listen on a health check node port of the case, because Weir did.\n", passed, len(all))
	for _, name := range byAddress {
		fmt.Fprintf(&out, "The router spread clients, not connections, in %s.\n", strings.ReplaceAll(name, "[Feature:LoadBalancer] ", ""))
	}
	fmt.Fprintf(&out, "Control, without Weir on the nodes: failed, as they have to:\n")
	for _, name := range controls {
		fmt.Fprintf(&out, "  %s\n", strings.ReplaceAll(name, "[Feature:LoadBalancer] ", ""))
	}
	return out.String()
}

// lastRun is what the report in file says of its run.
func lastRun(file string) string {
	text, err := os.ReadFile(file)
	lines := strings.Split(string(text), "\n")
	at := slices.IndexFunc(lines, func(l string) bool { return strings.HasSuffix(l, " passed.") })
	if err != nil || at < 0 || len(lines) < 6 {
		return ""
	}
	_, version, _ := strings.Cut(lines[4], "; ")
	return fmt.Sprintf("The run before, of %s, %s: %s\n", lines[2], version, lines[at])
}

// left lists the cases that are left out.
func left(out *strings.Builder) {
	why := map[string][]string{}
	for _, s := range ginkgo.PreviewSpecs("SIG Network").SpecReports {
		name, network := strings.CutPrefix(s.FullText(), "[sig-network] ")
		if of := func(c string) bool { return strings.HasPrefix(name, c) }; network && slices.ContainsFunc(containers, of) {
			why[reason(name)] = append(why[reason(name)], name)
		}
	}
	for _, s := range skipped {
		fmt.Fprintf(out, "\nLeft out: %s.\n", s.reason)
		slices.Sort(why[s.reason])
		for _, name := range why[s.reason] {
			fmt.Fprintf(out, "  %s\n", name)
		}
	}
}

// packages are the versions of Debian's packages.
func packages(names ...string) string {
	var out []string
	for _, name := range names {
		v, err := exec.Command("dpkg-query", "-W", "-f", "${Version}", name).Output()
		if err != nil {
			v = []byte("of unknown version")
		}
		out = append(out, name+" "+string(v))
	}
	return strings.Join(out, ", ")
}

// host is the machine, and the load.
func host() string {
	load, _ := os.ReadFile("/proc/loadavg")
	first, _, _ := strings.Cut(string(load), " ")
	return fmt.Sprintf("%v, load %s", machine.Describe(), first)
}
