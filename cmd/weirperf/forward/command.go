// Package forward measures packet paths on the wire: Weir beside the kernel's
// forwarding and other load balancers, each in turn in the same network of
// namespaces and on the same core. It is the command `weirperf forward`.
package forward

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/weirlb/weir/cmd/weirperf/forward/peer"
	"github.com/weirlb/weir/cmd/weirperf/machine"
	"github.com/weirlb/weir/cmd/weirperf/program"
	"github.com/weirlb/weir/perf/report"
	"github.com/weirlb/weir/perf/testbed"
)

// usageError means that the command was called wrongly.
type usageError struct{ error }

// ExitCode is 2.
func (usageError) ExitCode() int { return 2 }

// options are the command's flags.
type options struct {
	peers     []string
	workloads []string
	flows     []int
	setting   string
	seconds   float64
	turns     int
	endpoints int
	weir      string
	baseline  string
	asJSON    bool
	bars      bool
	allPeers  bool // peers not named: the installed ones
}

const long = `Builds a client, a node and a backend out of network namespaces and runs one
packet path after the other on the node: Weir, nftables as kube-proxy programs
it, the kernel's plain forwarding. Turns alternate between them. Only
delivered packets count.

The node has a single CPU, the last that this process may use, for all packets
that it receives, forwards and sends. The generator and the receivers at client
and backend have the first. A UDP figure is CPU time of the node's CPU (user,
system, softirq) per delivered packet, not wall-clock time.

  udp-established   64-byte packets of connections that exist, both directions
                    in equal parts, connections chosen at random
  udp-new           every packet begins a connection; one direction
  tcp-connect       a connection for each request: connect, 64 bytes there and
                    back, close; 16 clients
  tcp-request       requests over 16 open connections, as many as go; latency is
                    measured at 4,000 requests/s
  tcp-bulk          4 streams, with offloads, without segmentation offloads (TSO,
                    GSO, merging by GRO), and without checksum offloads either

For TCP clients and servers are ordinary sockets on the other CPU, and the figure
is their rate per second, with its limit: the core that had no time left, balancer
or client. There is no ratio of a rate that the clients limited. HAProxy and nginx
take part in TCP where they are installed (apt-get install haproxy nginx
libnginx-mod-stream).

The peers weir-loop, weir-xdp and weir-tcx are Weir without a flow cache, and with a
flow cache at the hook of that name; they run if they are named. --bars runs them beside
nftables and plain forwarding in the setting threaded, and prints a table of ratios with
the least that each has to reach. The command fails if a ratio falls short. --baseline
names a program weir of an earlier tree, whose packet loop is compared with weir-loop's.

Settings of the testbed:

  threaded   client and backend receive in NAPI threads on the other CPU, as other
             machines would
  default    veth pairs as the kernel makes them: the sender's CPU does the
             receiver's share of the work for every packet

The load is a window of packets under way, so that the node always has the next
packet waiting and drops none.`

// Command is `weirperf forward`.
func Command() *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:   "forward",
		Short: "Measure packet paths on the wire, beside each other",
		Long:  long,
		Example: `  weirperf forward
  weirperf forward --peers weir,nftables --workloads udp-established --flows 100000 --turns 9
  weirperf forward --setting threaded --seconds 5 --json
  weirperf forward --bars
  weirperf forward --bars --workloads udp-established --flows 10000 --turns 1 --seconds 0.5`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.allPeers = !cmd.Flags().Changed("peers")
			o.complete(cmd.Flags().Changed)
			return o.run(cmd)
		},
	}
	fs := cmd.Flags()
	fs.SortFlags = false
	fs.StringSliceVar(&o.peers, "peers", peer.Names(), "`names` of what to run, in this order (default: those that are installed)")
	fs.StringSliceVar(&o.workloads, "workloads", workloadNames(), "`names` of what to measure")
	fs.IntSliceVar(&o.flows, "flows", []int{10000, 100000, 1000000}, "`numbers` of established connections")
	fs.StringVar(&o.setting, "setting", "both", "`setting` of the testbed: threaded, default or both")
	fs.Float64Var(&o.seconds, "seconds", 1, "`seconds` of each measurement")
	fs.IntVar(&o.turns, "turns", 5, "`number` of turns of every peer; medians are shown")
	fs.IntVar(&o.endpoints, "endpoints", 256, "`number` of endpoints")
	fs.StringVar(&o.weir, "weir", "", "`path` of the weir program (default: beside this one, else in $PATH)")
	fs.StringVar(&o.baseline, "baseline", "", "`path` of another weir program, which runs without a flow cache as the peer weir-baseline")
	fs.BoolVar(&o.bars, "bars", false, "compare the flow cache with the ratios that it has to reach")
	fs.BoolVar(&o.asJSON, "json", false, "print JSON")
	return cmd
}

// complete fills in what other flags imply.
func (o *options) complete(given func(flag string) bool) {
	if o.bars && !given("peers") {
		o.peers = barPeers
	}
	if o.bars && !given("setting") {
		o.setting = string(testbed.Threaded)
	}
	if baseline := (peer.Weir{Variant: peer.Baseline}).Name(); o.baseline != "" && !slices.Contains(o.peers, baseline) {
		o.peers = append(slices.Clone(o.peers), baseline)
	}
}

// run measures and prints the results.
func (o *options) run(cmd *cobra.Command) error {
	peers, work, settings, err := o.check()
	if err != nil {
		return usageError{err}
	}

	b := &bench{o: *o, peers: peers, workloads: work, say: cmd.ErrOrStderr()}
	results, err := b.run(cmd.Context(), settings)
	if err != nil {
		return err
	}

	r := newResult(*o, results)
	for _, err := range b.failed {
		r.Errors = append(r.Errors, err.Error())
	}
	if o.asJSON {
		enc := json.NewEncoder(cmd.OutOrStdout())
		enc.SetIndent("", "  ")
		err = enc.Encode(r)
	} else {
		err = r.render(cmd.OutOrStdout())
	}
	if len(b.failed) > 0 {
		err = errors.Join(err, fmt.Errorf("%d measurements are void, the first: %w", len(b.failed), b.failed[0]))
	}
	return errors.Join(err, missed(r.Bars))
}

// check returns all errors of the flags.
func (o *options) check() ([]peer.Peer, []workload, []testbed.Setting, error) {
	var errs []error
	peers, err := peer.Named(o.peers)
	errs = append(errs, err)
	work, err := workloadsNamed(o.workloads)
	errs = append(errs, err)
	var settings []testbed.Setting
	switch o.setting {
	case "both":
		settings = []testbed.Setting{testbed.Threaded, testbed.Default}
	case string(testbed.Threaded), string(testbed.Default):
		settings = []testbed.Setting{testbed.Setting(o.setting)}
	default:
		errs = append(errs, fmt.Errorf("--setting: must be threaded, default or both, is %q", o.setting))
	}
	for _, n := range o.flows {
		if n < 1 || n > maxFlows {
			errs = append(errs, fmt.Errorf("--flows: must be from 1 to %d, is %d", maxFlows, n))
		}
	}
	if len(o.flows) == 0 {
		errs = append(errs, errors.New("--flows: must name a number"))
	}
	slices.Sort(o.flows)
	if o.seconds < 0.1 || o.seconds > 600 {
		errs = append(errs, fmt.Errorf("--seconds: must be from 0.1 to 600, is %v", o.seconds))
	}
	if o.turns < 1 {
		errs = append(errs, fmt.Errorf("--turns: must be at least 1, is %d", o.turns))
	}
	if o.endpoints < 1 || o.endpoints > 1000 {
		errs = append(errs, fmt.Errorf("--endpoints: must be from 1 to 1000, is %d", o.endpoints))
	}
	if slices.ContainsFunc(peers, func(p peer.Peer) bool { _, is := p.(peer.Weir); return is }) {
		o.weir, err = findWeir(o.weir)
		errs = append(errs, err)
	}
	if o.baseline != "" {
		o.baseline, err = findWeir(o.baseline)
		errs = append(errs, err)
	}
	return peers, work, settings, errors.Join(errs...)
}

// findWeir finds the program to measure.
func findWeir(path string) (string, error) {
	if path != "" {
		path, err := filepath.Abs(path)
		if err == nil {
			_, err = os.Stat(path)
		}
		return path, err
	}
	path, err := program.Weir()
	if err != nil {
		return "", fmt.Errorf("--weir: %w", err)
	}
	return path, nil
}

// result is the JSON form.
type result struct {
	Machine   machine.Machine    `json:"machine"`
	Command   string             `json:"command"`
	Endpoints int                `json:"endpoints"`
	Seconds   float64            `json:"seconds"`
	Results   []report.Result    `json:"results"`
	Ratios    map[string]float64 `json:"ratios"`
	Bars      []barResult        `json:"bars,omitempty"`
	Errors    []string           `json:"errors,omitempty"` // measurements that came to nothing
}

func newResult(o options, results []report.Result) *result {
	report.Sort(results, o.peers)
	of := "weir"
	if !slices.Contains(o.peers, of) {
		of = o.peers[0]
	}
	r := &result{Machine: machine.Describe(), Command: "weirperf " + strings.Join(os.Args[1:], " "),
		Endpoints: o.endpoints, Seconds: o.seconds, Results: results, Ratios: report.Ratios(results, of)}
	if o.bars {
		r.Bars = checkBars(results, &o)
	}
	return r
}
