// Package endpoints measures how clients fare while an endpoint does not serve, and what health checks
// cost: Weir and HAProxy in turn on the node of a testbed. It is the command `weirperf endpoints`.
package endpoints

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/weirlb/weir/cmd/weirperf/forward/peer"
	"github.com/weirlb/weir/cmd/weirperf/machine"
	"github.com/weirlb/weir/cmd/weirperf/program"
)

// usageError means that the command was called wrongly.
type usageError struct{ error }

// ExitCode is 2.
func (usageError) ExitCode() int { return 2 }

// options are the command's flags.
type options struct {
	parts   []string
	peers   []string
	turns   int
	seconds float64
	checked int
	weir    string
	asJSON  bool
}

// Parts of the measurement.
const (
	partKilled = "killed"
	partSilent = "silent"
	partProbes = "probes"
)

func allParts() []string { return []string{partKilled, partSilent, partProbes} }

const long = `Runs Weir and HAProxy (apt-get install haproxy) in turn between a client and endpoints, in
network namespaces, as root:

  killed   the process of one of four endpoints is killed. Each is checked by a connection every
           second, and fails at the third that is refused
  silent   one of four endpoints drops all packets. There are no checks
  probes   1,000 endpoints, without checks, with a connection to each every two seconds, and with
           an HTTP request: CPU time of the program

The client begins 200 connections per second, whatever becomes of the others, and waits 20 s for
the answer of an endpoint. The killed endpoint is tried until a SYN of a client comes there for
the last time. A connection is affected that fails or takes more than 500 ms. HAProxy has the
option redispatch, and its 3 retries.`

// Command is `weirperf endpoints`.
func Command() *cobra.Command {
	var (
		o     options
		serve string
	)
	cmd := &cobra.Command{
		Use:   "endpoints",
		Short: "Measure connections while an endpoint does not serve, and health checks, beside HAProxy",
		Long:  long,
		Example: `  weirperf endpoints
  weirperf endpoints --parts killed,silent --turns 5
  weirperf endpoints --parts probes --peers weir --seconds 60 --json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if serve != "" {
				return serveAt(cmd.Context(), serve)
			}
			peers, err := o.check()
			if err != nil {
				return usageError{err}
			}
			b := &bench{o: o, peers: peers, say: cmd.ErrOrStderr()}
			err = b.run(cmd.Context())
			r := &report{Machine: machine.Describe(), Command: "weirperf " + strings.Join(os.Args[1:], " "), Results: b.results, Loads: b.loads}
			if o.asJSON {
				enc := json.NewEncoder(cmd.OutOrStdout())
				enc.SetIndent("", "  ")
				return errors.Join(enc.Encode(r), err)
			}
			return errors.Join(r.render(cmd.OutOrStdout()), err) // of a run that was cut short, too
		},
	}
	fs := cmd.Flags()
	fs.SortFlags = false
	fs.StringSliceVar(&o.parts, "parts", allParts(), "`names` of parts")
	fs.StringSliceVar(&o.peers, "peers", []string{peer.Weir{}.Name(), peer.HAProxy{}.Name()}, "`names` of what to run, in this order")
	fs.IntVar(&o.turns, "turns", 3, "`number` of turns")
	fs.Float64Var(&o.seconds, "seconds", 60, "`seconds` of CPU time of a turn of probes")
	fs.IntVar(&o.checked, "endpoints", 1000, "`number` of endpoints of probes")
	fs.StringVar(&o.weir, "weir", "", "`path` of the weir program (default: beside this one, else in $PATH)")
	fs.BoolVar(&o.asJSON, "json", false, "print JSON")
	fs.StringVar(&serve, "serve", "", "be the process of an endpoint")
	_ = fs.MarkHidden("serve")
	return cmd
}

// check returns all errors of the flags.
func (o *options) check() ([]peer.Peer, error) {
	var errs []error
	for _, name := range o.parts {
		if !slices.Contains(allParts(), name) {
			errs = append(errs, fmt.Errorf("--parts: unknown part %q: there are %v", name, allParts()))
		}
	}
	peers, err := peer.Named(o.peers)
	errs = append(errs, err)
	for _, p := range peers {
		switch p.(type) {
		case peer.Weir, peer.HAProxy:
			errs = append(errs, p.Available())
		default:
			errs = append(errs, fmt.Errorf("--peers: %s checks no endpoints", p.Name()))
		}
	}
	if o.turns < 1 || o.seconds <= 0 {
		errs = append(errs, fmt.Errorf("--turns, --seconds: must be more than 0, are %d, %v", o.turns, o.seconds))
	}
	if o.checked < 1 || o.checked > 30000 {
		errs = append(errs, fmt.Errorf("--endpoints: must be from 1 to 30000, is %d", o.checked))
	}
	if o.weir == "" {
		if o.weir, err = program.Weir(); err != nil {
			errs = append(errs, fmt.Errorf("--weir: %w", err))
		}
	}
	return peers, errors.Join(errs...)
}
