package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/cmd/weirperf/program"
	"github.com/weirlb/weir/perf/netlab"
	"github.com/weirlb/weir/perf/netlab/patience"
	"github.com/weirlb/weir/perf/netlab/workload"
)

// Time limits for steps that take Weir a fraction of a second, on a quiet machine. The
// start of a binary that is in no cache waits for a disk or a network.
const (
	startWithin = 30 * time.Second
	applyWithin = 10 * time.Second
	stopWithin  = 10 * time.Second
)

// site is the lab with everything that runs in it.
type site struct {
	lab       *netlab.Edge
	web       []*workload.Server // in the order of backends
	program   string             // weir
	weir      *netlab.Daemon
	log       string // file
	socket    string
	manifests string // directory
	admin     *api.Client
}

// newSite builds the lab, starts the servers and `weir run`, and waits until
// Weir serves the first phase.
func newSite(ctx context.Context, r *report, errOut io.Writer, o options) (_ *site, err error) {
	weir, err := program.Weir()
	if err != nil {
		return nil, err
	}
	lab, err := netlab.NewEdge(netlab.EdgeConfig{NoOverlay: true})
	if err != nil {
		return nil, err
	}
	s := &site{
		lab:       lab,
		program:   weir,
		log:       filepath.Join(lab.Dir(), "weir.log"),
		socket:    filepath.Join(lab.Dir(), "weir.sock"),
		manifests: filepath.Join(lab.Dir(), "manifests"),
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	s.admin = api.NewClient(s.socket)
	if err := s.asFromWire(); err != nil {
		return nil, err
	}
	if err := s.serve(); err != nil {
		return nil, err
	}
	if err := os.Mkdir(s.manifests, 0o755); err != nil {
		return nil, err
	}
	if err := writeManifests(s.manifests, phases[0].state); err != nil {
		return nil, err
	}
	r.topology()
	if err := s.startWeir(errOut, o.verbose); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, patience.For(startWithin))
	defer cancel()
	err = s.applied(ctx, phases[0])
	var status *api.Status
	if err == nil {
		status, err = s.attached(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("weir run did not get ready: %w\n%s", err, s.logTail())
	}
	r.ready(status)
	return s, nil
}

// asFromWire has hosts send packets of the MTU at most: the accounts compare numbers of packets.
func (s *site) asFromWire() error {
	for _, n := range []*netlab.Namespace{s.lab.Client, s.lab.Pod, s.lab.ZoneA, s.lab.ZoneB} {
		err := n.SetOffloads("eth0", map[string]bool{"tx-tcp-segmentation": false, "tx-tcp6-segmentation": false, "tx-generic-segmentation": false})
		if err != nil {
			return err
		}
	}
	return nil
}

// serve starts an HTTP and an echo server on every backend.
func (s *site) serve() error {
	for i, n := range []*netlab.Namespace{s.lab.Pod, s.lab.ZoneA, s.lab.ZoneB} {
		web, err := workload.Serve(n, backends[i].name, fmt.Sprintf("[::]:%d", httpTarget))
		if err != nil {
			return err
		}
		s.web = append(s.web, web)
		s.lab.OnClose(web.Close)
		echo, err := workload.ServeEcho(n, backends[i].name, fmt.Sprintf("[::]:%d", echoTarget))
		if err != nil {
			return err
		}
		s.lab.OnClose(echo.Close)
	}
	return nil
}

func (s *site) startWeir(errOut io.Writer, verbose bool) error {
	config := filepath.Join(s.lab.Dir(), "config.yaml")
	if err := writeConfig(config, s.manifests, s.socket, filepath.Join(s.lab.Dir(), "conntrack")); err != nil {
		return err
	}
	cmd := exec.Command(s.program, "run", "--config", config)
	if verbose {
		cmd.Stderr = errOut
	}
	var err error
	s.weir, err = s.lab.Edge.StartDaemon(cmd, s.log)
	return err
}

// enter brings the endpoints into the phase's state while traffic flows, and
// waits until Weir has taken it up.
func (s *site) enter(ctx context.Context, t *traffic, p phase) (*result, error) {
	ctx, cancel := context.WithTimeout(ctx, patience.For(applyWithin))
	defer cancel()
	res := t.begin()
	if err := s.accept(p); err != nil {
		return nil, err
	}
	if err := writeManifests(s.manifests, p.state); err != nil {
		return nil, err
	}
	if err := s.applied(ctx, p); err != nil {
		return nil, fmt.Errorf("weir has not taken up the new endpoints: %w\n%s", err, s.logTail())
	}
	if err := t.steady(ctx, res); err != nil {
		return nil, err
	}
	return res, s.refuse(p)
}

// accept opens the servers that the phase brings back.
func (s *site) accept(p phase) error {
	for i, web := range s.web {
		if p.state[i] != absent && !web.Accepting() {
			if err := web.Accept(); err != nil {
				return err
			}
		}
	}
	return nil
}

// refuse closes the listeners of lost endpoints: a new connection that still
// went there would fail.
func (s *site) refuse(p phase) error {
	for i, web := range s.web {
		if p.state[i] == absent {
			if err := web.Refuse(); err != nil {
				return err
			}
		}
	}
	return nil
}

// applied waits until every frontend of the Service has exactly the endpoints
// and the tier that the phase asks for.
func (s *site) applied(ctx context.Context, p phase) error {
	return s.weir.Until(ctx, func(ctx context.Context) error {
		list, err := s.admin.Frontends(ctx)
		if err != nil {
			return err
		}
		return judge(list.Frontends, p)
	})
}

// attached waits until Weir takes traffic on all interfaces.
func (s *site) attached(ctx context.Context) (status *api.Status, err error) {
	err = s.weir.Until(ctx, func(ctx context.Context) error {
		if status, err = s.admin.Status(ctx); err != nil {
			return err
		}
		return status.Attached()
	})
	return status, err
}

// judge compares the frontends of the demo's Service with those of the phase.
func judge(frontends []api.Frontend, p phase) error {
	found := 0
	for _, f := range frontends {
		if f.Service != serviceName {
			continue
		}
		found++
		address, err := netip.ParseAddrPort(f.Address)
		if err != nil {
			return err
		}
		var got []string
		for _, e := range f.Endpoints {
			got = append(got, e.Address)
		}
		want := p.endpoints(address.Addr().Is6(), f.Protocol)
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) || f.Tier != p.tier {
			return fmt.Errorf("frontend %s %s has endpoints %v of tier %s, want %v of tier %s",
				f.Protocol, f.Address, got, f.Tier, want, p.tier)
		}
	}
	if want := len(frontendAddrs()) * 2; found != want { // HTTP and UDP echo
		return fmt.Errorf("%d frontends of %s, want %d", found, serviceName, want)
	}
	return nil
}

// endpoints are the addresses that must get new connections.
func (p phase) endpoints(six bool, protocol string) []string {
	port := uint16(httpTarget)
	if protocol == "UDP" {
		port = echoTarget
	}
	var out []string
	for i, b := range backends {
		if !p.serve[i] {
			continue
		}
		address := netlab.Host4(b.network, b.host)
		if six {
			address = netlab.Host6(b.network, b.host)
		}
		out = append(out, netip.AddrPortFrom(address, port).String())
	}
	return out
}

// logTail is the end of the log of weir run.
func (s *site) logTail() string {
	return "weir run said:\n  " + strings.ReplaceAll(s.weir.LogTail(15), "\n", "\n  ")
}

func (s *site) logHint() string {
	return "run it with --verbose to see what weir run logs, or with --keep to look around"
}

// close stops Weir as an operator would and removes the lab.
func (s *site) close() error {
	var err error
	if s.weir.Running() {
		err = s.weir.Stop(patience.For(stopWithin))
	}
	return errors.Join(err, s.lab.Close())
}
