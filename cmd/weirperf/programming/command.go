// Package programming measures how long a change of endpoints takes to reach packets: Weir and
// kube-proxy in turn on the node of a cluster with a real API server. It is the command
// `weirperf programming`.
package programming

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/weirlb/weir/cmd/weirperf/machine"
	"github.com/weirlb/weir/cmd/weirperf/program"
)

// usageError means that the command was called wrongly.
type usageError struct{ error }

// ExitCode is 2.
func (usageError) ExitCode() int { return 2 }

// options are the command's flags.
type options struct {
	services  []int
	peers     []string
	rate      float64
	seconds   float64
	weir      string
	kubeenv   string
	kubeProxy string
	asJSON    bool
}

const long = `Runs a real API server (kubeenv), and on a node beside it Weir and kube-proxy (mode nftables)
in turn. Each Service has a ClusterIP, a TCP port, and an EndpointSlice with one endpoint. A
client behind the node opens connections to ClusterIPs, and each endpoint answers with
its address.

  cold start   from the start of the program until connections to 20 Services, spread over
               all, have reached their endpoints
  to new       from the change of a slice until a new connection has reached the new endpoint
  to old       from the change until the last new connection has reached the old endpoint;
               0 if none did
  connect      a connection with its answer, one after the other, to Services in turn, before
               the changes begin

A change replaces the endpoint of a Service. It begins at the time in the annotation
endpoints.kubernetes.io/last-change-trigger-time, which is written right before the request, as
for the SLI of network programming latency of Kubernetes; the API server's part is in it. After
a change, connections begin 1 ms apart, later 5 % of the time that has passed. A failed
connection reaches nothing, and is counted.

Both run with their defaults (kube-proxy gathers changes for up to a second), but for ClusterIPs, which
Weir serves by an option. They reach the API server through a forwarder in the
node's namespace.`

// Command is `weirperf programming`.
func Command() *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:   "programming",
		Short: "Measure the time from a change of endpoints to packets, beside kube-proxy",
		Long:  long,
		Example: `  export KUBEENV_BIN=$(discovery/kube/kubeenv/build.sh)
  export KUBEPROXY_BIN=$(discovery/kube/kubeenv/kubeproxy/build.sh)
  weirperf programming
  weirperf programming --services 1000 --seconds 5
  weirperf programming --services 1000,10000,30000 --json
  weirperf programming --peers weir --rate 50`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.check(); err != nil {
				return usageError{err}
			}
			b := &bench{o: o, say: cmd.ErrOrStderr()}
			results, err := b.run(cmd.Context())
			if len(results) == 0 {
				return err
			}
			r := newReport(&o, results) // of a run that was cut short, too
			if o.asJSON {
				enc := json.NewEncoder(cmd.OutOrStdout())
				enc.SetIndent("", "  ")
				return errors.Join(enc.Encode(r), err)
			}
			return errors.Join(r.render(cmd.OutOrStdout()), err)
		},
	}
	fs := cmd.Flags()
	fs.SortFlags = false
	fs.IntSliceVar(&o.services, "services", []int{1000, 10000}, "`numbers` of Services")
	fs.StringSliceVar(&o.peers, "peers", peerNames(), "`names` of what to run, in this order")
	fs.Float64Var(&o.rate, "rate", 10, "changes per `second`")
	fs.Float64Var(&o.seconds, "seconds", 20, "`seconds` of changes")
	fs.StringVar(&o.weir, "weir", "", "`path` of the weir program (default: beside this one, else in $PATH)")
	fs.StringVar(&o.kubeenv, "kubeenv", os.Getenv("KUBEENV_BIN"), "`path` of the API server (default: $KUBEENV_BIN)")
	fs.StringVar(&o.kubeProxy, "kube-proxy", os.Getenv("KUBEPROXY_BIN"), "`path` of kube-proxy (default: $KUBEPROXY_BIN)")
	fs.BoolVar(&o.asJSON, "json", false, "print JSON")
	return cmd
}

// mostServices is bounded by the addresses of endpoints, two for each Service.
const mostServices = 32000

// check returns all errors of the flags.
func (o *options) check() error {
	var errs []error
	if len(o.services) == 0 {
		errs = append(errs, errors.New("--services: must name a number"))
	}
	for _, n := range o.services {
		if n < coldServices || n > mostServices {
			errs = append(errs, fmt.Errorf("--services: must be from %d to %d, is %d", coldServices, mostServices, n))
		}
	}
	slices.Sort(o.services) // the cluster grows
	for _, name := range o.peers {
		if !slices.Contains(peerNames(), name) {
			errs = append(errs, fmt.Errorf("--peers: unknown peer %q: there are %v", name, peerNames()))
		}
	}
	if len(o.peers) == 0 {
		errs = append(errs, errors.New("--peers: must name a peer"))
	}
	if o.rate < 0.1 || o.rate > 100 {
		errs = append(errs, fmt.Errorf("--rate: must be from 0.1 to 100, is %v", o.rate))
	}
	if o.seconds < 1 || o.seconds > 3600 {
		errs = append(errs, fmt.Errorf("--seconds: must be from 1 to 3600, is %v", o.seconds))
	}
	errs = append(errs, executable("--kubeenv", o.kubeenv, "discovery/kube/kubeenv/build.sh"))
	if slices.Contains(o.peers, peerKubeProxy) {
		errs = append(errs, executable("--kube-proxy", o.kubeProxy, "discovery/kube/kubeenv/kubeproxy/build.sh"))
	}
	if slices.Contains(o.peers, peerWeir) && o.weir == "" {
		path, err := program.Weir()
		if err != nil {
			err = fmt.Errorf("--weir: %w", err)
		}
		o.weir = path
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func executable(flag, path, script string) error {
	if path == "" {
		return fmt.Errorf("%s: is not set: %s builds it and prints the path", flag, script)
	}
	if info, err := os.Stat(path); err != nil {
		return fmt.Errorf("%s: %w", flag, err)
	} else if info.Mode()&0o111 == 0 {
		return fmt.Errorf("%s: %s is not executable", flag, path)
	}
	return nil
}

// report is the JSON form.
type report struct {
	Machine machine.Machine `json:"machine"`
	Command string          `json:"command"`
	Rate    float64         `json:"changesPerSecond"`
	Seconds float64         `json:"seconds"`
	Results []Result        `json:"results"`
	// Ratios are p99 of Weir to that of kube-proxy, and cold starts, by number of Services.
	Ratios map[string]float64 `json:"ratios,omitempty"`
}

func newReport(o *options, results []Result) *report {
	return &report{Machine: machine.Describe(), Command: "weirperf " + strings.Join(os.Args[1:], " "),
		Rate: o.rate, Seconds: o.seconds, Results: results, Ratios: ratios(results)}
}
