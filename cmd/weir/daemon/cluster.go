package daemon

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/klog/v2"

	"github.com/weirlb/weir/cmd/weir/config"
	"github.com/weirlb/weir/cmd/weir/metrics"
	"github.com/weirlb/weir/cmd/weir/problem"
	"github.com/weirlb/weir/cmd/weir/program"
	"github.com/weirlb/weir/cmd/weir/state"
	"github.com/weirlb/weir/discovery"
	"github.com/weirlb/weir/discovery/kube"
)

// cluster is the source of an API server, with the last known state beside
// it.
type cluster struct {
	*kube.Source
	keeper    *state.Keeper // nil: nothing is kept
	latencies *metrics.Latencies
	server    string
	file      string // of the last known state
	// startFault is why the last known state could not be read at the start, "" if it could.
	startFault string
}

// ClusterConfig is what cfg says of the cluster.
func ClusterConfig(cfg *config.Configuration) (kube.Config, error) {
	k := cfg.Discovery.Kubernetes
	rest, err := kube.ClientConfig(k.Kubeconfig)
	if err != nil {
		return kube.Config{}, err
	}
	return kube.Config{
		REST:            rest,
		Store:           program.Discovery(cfg.NodeName, cfg.ServiceProxyName),
		LabelSelector:   k.LabelSelector,
		LegacyEndpoints: k.LegacyEndpoints,
		Events:          true,
	}, nil
}

func newCluster(ctx context.Context, cfg *config.Configuration, log *slog.Logger) (*cluster, error) {
	kc, err := ClusterConfig(cfg)
	if err != nil {
		return nil, err
	}
	klog.SetSlogLogger(log.With("from", "client-go"))
	c := &cluster{latencies: metrics.NewLatencies(), server: kc.REST.Host, file: filepath.Join(cfg.StateDir, state.File)}
	kc.Log, kc.Measure = log, c.latencies
	identity := identityOf(&kc)
	file := c.file
	if cfg.StateDir != "" {
		if kc.LastKnown, kc.LastKnownTime, err = state.Load(file, identity); err != nil && !errors.Is(err, fs.ErrNotExist) {
			log.Error("start without a last known state", "err", err)
			c.startFault = err.Error()
		}
	}
	if err := askAccess(ctx, kc, log); err != nil {
		return nil, err
	}
	if c.Source, err = kube.New(kc); err != nil {
		return nil, err
	}
	if cfg.StateDir != "" {
		c.keeper = state.NewKeeper(file, identity, c.Objects, log)
	}
	return c, nil
}

// identityOf tells clusters and choices of objects apart: the state of one
// must not be served for another. Many clusters have the same address inside;
// their authorities differ.
func identityOf(c *kube.Config) string {
	ca := c.REST.CAData
	if len(ca) == 0 && c.REST.CAFile != "" {
		ca, _ = os.ReadFile(c.REST.CAFile) // what cannot be read cannot be connected with either
	}
	return fmt.Sprintf("%s ca=%.8x proxy=%q selector=%q endpoints=%v", c.REST.Host, sha256.Sum256(ca),
		c.Store.ServiceProxyName, c.LabelSelector, c.LegacyEndpoints)
}

// askAccess refuses to start where the API server forbids what is needed: a
// Weir that waits for ever helps nobody. One that cannot be asked is waited
// for, and so is one that knows nobody, as long as there is something to serve:
// its own memory may be what it lacks.
func askAccess(ctx context.Context, kc kube.Config, log *slog.Logger) error {
	denials, err := kube.Access(ctx, kc)
	if errors.Is(err, kube.ErrCredentials) && kc.LastKnown == nil {
		return err
	}
	if err != nil {
		log.Warn("cannot ask the API server for permissions", "err", err)
		return nil
	}
	var denied []error
	for _, d := range denials {
		if d.Optional {
			log.Warn(d.Error())
			continue
		}
		denied = append(denied, d)
	}
	return errors.Join(denied...)
}

// Run implements Source.
func (c *cluster) Run(ctx context.Context, deliver func(*discovery.Update)) error {
	if c.keeper == nil {
		return c.Source.Run(ctx, deliver)
	}
	var tasks sync.WaitGroup
	defer tasks.Wait()
	tasks.Go(func() { c.keeper.Run(ctx) })
	return c.Source.Run(ctx, func(up *discovery.Update) {
		deliver(up)
		c.keeper.Changed()
	})
}

// Problems implements Source. The log of requests and of the state file is
// that of their packages.
func (c *cluster) Problems() []problem.Problem {
	out := noteProblems(c.Notes())
	add := func(kind problem.Kind, field, reason string, since time.Time) {
		out = append(out, problem.Problem{Kind: kind, Object: "API server " + c.server, Field: field, Reason: reason, Since: since, Logged: true})
	}
	for _, f := range c.Source.Faults() {
		add(problem.APIServer, f.Resource, "cannot be watched, what is known stays: "+f.Reason, f.Since)
	}
	if at, last := c.LastKnown(); last {
		add(problem.LastKnownState, "", "has not told its state since the start: serving what was known at "+at.Format(time.RFC3339), time.Time{})
	}
	state := func(reason string) {
		out = append(out, problem.Problem{Kind: problem.StateFile, Object: "File " + c.file, Reason: reason, Logged: true})
	}
	if c.startFault != "" && !c.Synced() {
		state(c.startFault) // what is served now comes from the API server, and is saved anew
	}
	if c.keeper != nil {
		if err := c.keeper.Err(); err != nil {
			state(err.Error())
		}
	}
	return out
}

// Collector are the metrics of this source alone.
func (c *cluster) Collector() prometheus.Collector { return c.latencies }
