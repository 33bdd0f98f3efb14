package source

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
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/weirlb/weir/cmd/weir/config"
	"github.com/weirlb/weir/cmd/weir/lastknown"
	"github.com/weirlb/weir/cmd/weir/metrics"
	"github.com/weirlb/weir/cmd/weir/problem"
	"github.com/weirlb/weir/cmd/weir/translate"
	"github.com/weirlb/weir/discovery"
	"github.com/weirlb/weir/discovery/kube"
)

// Cluster is the source of an API server, with the last known state beside
// it.
type Cluster struct {
	*kube.Source
	keeper    *lastknown.Keeper // nil: nothing is kept
	names     *resolution
	latencies *metrics.Latencies
	server    string
	file      string // of the last known state
	// startFault is why the last known state could not be read at the start, "" if it could.
	startFault string
	// access asks for permissions beside the start, nil where that is done.
	access *access
	// clusterIPs is true where cluster IPs are served.
	clusterIPs atomic.Bool
}

// ClusterConfig is the part of cfg about the cluster.
func ClusterConfig(cfg *config.Configuration) (kube.Config, error) {
	k := cfg.Discovery.Kubernetes
	rest, err := kube.ClientConfig(k.Kubeconfig)
	if err != nil {
		return kube.Config{}, err
	}
	return kube.Config{
		ObjectNamespaces: cfg.Announce.WatchedNamespaces(), ObjectSecrets: cfg.Announce.ObjectSecrets,
		ConfigMaps:      config.DeniedMaps(cfg.DenyLists),
		REST:            rest,
		Store:           Store(cfg),
		LabelSelector:   k.LabelSelector,
		LegacyEndpoints: k.LegacyEndpoints,
		Events:          k.RecordsEvents(),
		DaemonSet:       OwnDaemonSet(),
	}, nil
}

// OwnDaemonSet is the DaemonSet of the Pod of this process, as chart and base name it in the
// environment, or zero.
func OwnDaemonSet() types.NamespacedName {
	n := types.NamespacedName{Namespace: os.Getenv("POD_NAMESPACE"), Name: os.Getenv("DAEMONSET_NAME")}
	if n.Namespace == "" || n.Name == "" {
		return types.NamespacedName{}
	}
	return n
}

// logClientGo guards the logger of client-go: a process has a single logger, which must
// not change while an informer runs.
var logClientGo sync.Once

func newCluster(ctx context.Context, cfg *config.Configuration, reach *translate.SharedReach, working func() (done func()), log *slog.Logger) (*Cluster, error) {
	kc, err := ClusterConfig(cfg)
	if err != nil {
		return nil, err
	}
	logClientGo.Do(func() { klog.SetSlogLogger(log.With("from", "client-go")) })
	c := &Cluster{
		names: newNames(cfg, log), latencies: metrics.NewLatencies(), server: kc.REST.Host, file: filepath.Join(cfg.StateDir, lastknown.File),
	}
	c.clusterIPs.Store(cfg.ClusterIPs)
	kc.Log, kc.Measure, kc.Working = log, c.latencies, working
	kc.Store = c.names.resolving(needed(cfg, reach))
	kc.Concerns = func(svc *discovery.Service) bool { return translate.HasFrontend(svc, c.clusterIPs.Load()) }
	identity := Identity(&kc)
	file := c.file
	if cfg.StateDir != "" {
		kc.LastKnown, kc.LastKnownTime, err = lastknown.Load(file, identity)
		if err == nil {
			kc.LastValid = kc.LastKnown.Valid
			err = TooOld(kc.LastKnownTime, cfg.Discovery.Kubernetes.LastKnownMaxAge())
		}
		if err != nil {
			kc.LastKnown, kc.LastKnownTime = nil, time.Time{}
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			log.Error("start without a last known state", "err", err)
			c.startFault = err.Error()
		}
	}
	// If there is something to serve, the API server is asked for nothing before: it may be
	// unreachable.
	if kc.LastKnown != nil {
		c.access = &access{cfg: kc, log: log}
	} else if err := askAccess(ctx, kc, log); err != nil {
		return nil, err
	}
	if c.Source, err = kube.New(kc); err != nil {
		return nil, err
	}
	c.names.changed = c.NamesChanged
	if cfg.StateDir != "" {
		c.keeper = lastknown.NewKeeper(file, identity, c.Objects, log)
		c.keeper.GoodAt = c.GoodAt
	}
	return c, nil
}

// Identity tells clusters and choices of objects apart: the state of one
// must not be served for another. Many clusters have the same address inside;
// their authorities differ.
func Identity(c *kube.Config) string {
	ca := c.REST.CAData
	if len(ca) == 0 && c.REST.CAFile != "" {
		ca, _ = os.ReadFile(c.REST.CAFile) // a file that cannot be read cannot be connected with either
	}
	return fmt.Sprintf("%s ca=%.8x proxy=%q selector=%q endpoints=%v", c.REST.Host, sha256.Sum256(ca),
		c.Store.ServiceProxyName, c.LabelSelector, c.LegacyEndpoints)
}

// Run implements Source.
func (c *Cluster) Run(ctx context.Context, deliver func(*discovery.Update)) error {
	var tasks sync.WaitGroup
	defer tasks.Wait()
	defer c.names.run(ctx)()
	if c.access != nil {
		tasks.Go(func() { c.access.run(ctx) })
	}
	if c.keeper == nil {
		return c.Source.Run(ctx, deliver)
	}
	tasks.Go(func() { c.keeper.Run(ctx) })
	served := map[discovery.ServiceName]bool{}
	return c.Source.Run(ctx, func(up *discovery.Update) {
		deliver(up)
		if c.concerns(up, served) {
			c.keeper.Changed()
		}
	})
}

// ServedGoodAt is when the served state was last known to be the state of the cluster,
// zero while nothing is.
func (c *Cluster) ServedGoodAt() time.Time {
	if at, last := c.LastKnown(); last {
		return at
	}
	return c.GoodAt()
}

// Reconfigured takes over the changes of a reload. Services that are served from now
// on may have changed without a save.
func (c *Cluster) Reconfigured(cfg *config.Configuration) {
	if c.clusterIPs.Swap(cfg.ClusterIPs) != cfg.ClusterIPs && c.keeper != nil {
		c.keeper.Changed()
	}
}

// concerns reports whether an update changes anything that this node serves.
// served are the Services with a frontend, as of the update before, and whether they have
// others than cluster IPs; it is brought up to date.
func (c *Cluster) concerns(up *discovery.Update, served map[discovery.ServiceName]bool) bool {
	clusterIPs := c.clusterIPs.Load()
	counts := func(name discovery.ServiceName) bool {
		beside, has := served[name]
		return has && (beside || clusterIPs)
	}
	out := up.Node != nil
	for _, svc := range up.Put {
		out = out || counts(svc.Name)
		if translate.HasFrontend(svc, true) {
			served[svc.Name] = translate.HasFrontend(svc, false)
		} else {
			delete(served, svc.Name)
		}
		out = out || counts(svc.Name)
	}
	for _, name := range up.Deleted {
		out = out || counts(name)
		delete(served, name)
	}
	return out
}

// Problems implements Source. The log of requests and of the state file is
// that of their packages.
func (c *Cluster) Problems() []problem.Problem {
	out := append(noteProblems(c.Notes()), c.names.problems()...)
	add := func(kind problem.Kind, field, reason string, since time.Time) {
		out = append(out, problem.Problem{Kind: kind, Object: "API server " + c.server, Field: field, Reason: reason, Since: since, Logged: true})
	}
	for _, f := range c.Source.Faults() {
		add(problem.APIServer, f.Resource, "cannot be watched, what is known stays: "+f.Reason, f.Since)
	}
	if at, last := c.LastKnown(); last {
		add(problem.LastKnownState, "", "has not told its state since the start: serving what was known at "+at.Format(time.RFC3339), time.Time{})
	}
	if c.access != nil {
		for _, reason := range c.access.faults() {
			add(problem.APIServer, "", reason, time.Time{})
		}
	}
	state := func(reason string) {
		out = append(out, problem.Problem{Kind: problem.StateFile, Object: "File " + c.file, Reason: reason, Logged: true})
	}
	if c.startFault != "" && !c.Synced() {
		state(c.startFault) // the served state now comes from the API server, and is saved anew
	}
	if c.keeper != nil {
		if err := c.keeper.Err(); err != nil {
			state(err.Error())
		}
	}
	return out
}

// Collector are the metrics of this source alone.
func (c *Cluster) Collector() prometheus.Collector { return c.latencies }

// KeptFile is the size of the last known state's file, and when it was last good; 0 where nothing
// is kept.
func (c *Cluster) KeptFile() (size int64, good time.Time) {
	if c.keeper == nil {
		return 0, time.Time{}
	}
	return c.keeper.File()
}
