// Package daemon is `weir run`: it wires discovery, topology and the packet
// path together and runs them until it must stop.
//
//	source --Update--> publisher --> lb.LB, announcer, health checks
//
// Nothing here is on a packet's path.
package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirlb/weir/cmd/weir/announcer"
	"github.com/weirlb/weir/cmd/weir/answers"
	"github.com/weirlb/weir/cmd/weir/complaints"
	"github.com/weirlb/weir/cmd/weir/config"
	"github.com/weirlb/weir/cmd/weir/denylists"
	"github.com/weirlb/weir/cmd/weir/drains"
	"github.com/weirlb/weir/cmd/weir/endpointhealth"
	"github.com/weirlb/weir/cmd/weir/event"
	"github.com/weirlb/weir/cmd/weir/firewall"
	"github.com/weirlb/weir/cmd/weir/flowlog"
	"github.com/weirlb/weir/cmd/weir/healthcheck"
	"github.com/weirlb/weir/cmd/weir/healthz"
	"github.com/weirlb/weir/cmd/weir/problem"
	"github.com/weirlb/weir/cmd/weir/process"
	"github.com/weirlb/weir/cmd/weir/publisher"
	"github.com/weirlb/weir/cmd/weir/sdnotify"
	"github.com/weirlb/weir/cmd/weir/source"
	"github.com/weirlb/weir/cmd/weir/tuning"
	"github.com/weirlb/weir/lb"
	"github.com/weirlb/weir/lb/attempts"
	"github.com/weirlb/weir/lb/phase"
	"github.com/weirlb/weir/lb/ports"
	"github.com/weirlb/weir/lb/probepath"
	"github.com/weirlb/weir/lb/ratelimit"
	"github.com/weirlb/weir/lb/table"
	"github.com/weirlb/weir/lb/worker"
	"github.com/weirlb/weir/lb/xsk"
)

// Daemon is a running Weir.
type Daemon struct {
	log    *slog.Logger
	source source.Source
	lb     *lb.LB
	checks *healthcheck.Checks
	health *endpointhealth.Monitor
	probes *probepath.Path // set with health
	// attempts are set with lb.
	attempts *answers.Attempts
	// announcer is nil where nothing is announced.
	announcer *announcer.Announcer
	// flowLog is nil where connections are not recorded.
	flowLog   *flowlog.Log
	publisher *publisher.Publisher
	notify    *sdnotify.Notifier
	// problems are all that is not done as it was asked for.
	problems *problem.Registry
	events   *event.Ring
	stop     context.CancelCauseFunc // ends Run, with an error or without
	level    *slog.LevelVar          // nil: the level of the log is fixed

	ending     *process.Ending
	privileges process.Privileges
	tuned      *tuning.Undo // undoes tune

	profiling atomic.Bool    // /debug/pprof is served
	phases    *phase.Phases  // of the start
	taken     chan struct{}  // closed when traffic is taken
	drains    *drains.Drains // by the operator

	updating healthz.Pending
	// cfg is the publisher's: what a reload changes is to be had of it.
	cfg *config.Configuration
}

// Options are the parameters of Run beside the configuration.
type Options struct {
	Log *slog.Logger
	// Level is that of Log, to be changed by a reload; nil: it cannot be.
	Level *slog.LevelVar
	// Signals are the process's, caught since the start.
	Signals *process.Signals
	// Watch is the configuration file that is to be read again when it changes;
	// nil: on SIGHUP alone.
	Watch *process.FileWatch
	// Sockets are those that the service manager has kept, nil for none; see process.LastSockets.
	Sockets *xsk.Transfer
	// Again is set where the process was executed again because a worker was stalled.
	Again bool
}

// Run serves until a signal, a fault or ctx ends it, and leaves nothing behind
// then, except for a restart. It drains on SIGTERM alone.
func Run(ctx context.Context, cfg *config.Configuration, o Options) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	d := &Daemon{
		log: o.Log, level: o.Level, cfg: cfg, stop: cancel,
		taken: make(chan struct{}), phases: phase.New(process.StartOf(o.Again), o.Log),
	}
	d.phases.End("program file and configuration")
	d.drains = drains.New(cfg, d.log)
	d.profiling.Store(cfg.EnableProfiling)
	d.events = event.NewRing(d.log)
	d.problems = problem.NewRegistry(d.log)
	d.problems.OnChange(d.tellService)
	d.publisher = publisher.New(cfg, publisher.Config{
		Drains: d.drains, Taken: d.took, Stop: d.stop, Updating: &d.updating,
		Phases: d.phases, Problems: d.problems, Events: d.events, Log: d.log,
	})
	return d.run(ctx, o)
}

// run starts all parts, and ends them when ctx ends.
func (d *Daemon) run(ctx context.Context, o Options) (err error) {
	var tasks sync.WaitGroup
	defer func() {
		d.stop(nil)
		tasks.Wait()
		if d.lb != nil {
			err = errors.Join(err, d.announcer.Close(d.ending.Leaving() && err == nil), d.probes.Close(), d.end(err))
		}
	}()
	task := func(name string, f func(context.Context) error) {
		tasks.Go(func() {
			if err := f(ctx); err != nil && ctx.Err() == nil {
				d.stop(fmt.Errorf("%s: %w", name, err))
			}
		})
	}
	if d.notify, err = sdnotify.New(d.serviceHealth, d.log); err != nil {
		return err
	}
	d.ending = process.NewEnding(end{d}, func() { d.stop(nil) }, d.notify, d.events, d.log)
	tasks.Go(func() { d.ending.Follow(ctx, o.Signals.Leave) })
	reach := source.ReachOf(d.cfg)
	if d.source, err = source.New(ctx, d.cfg, reach, d.updating.Working, d.log); err != nil {
		return err
	}
	d.publisher.From(d.source, reach)
	d.ending.Sourced(d.source)
	process.WarnOfOnStop(d.cfg, d.log)
	d.phases.End("source")
	// The Services are learnt while the packet path is made ready.
	task("discovery", func(ctx context.Context) error { return d.source.Run(ctx, d.publisher.Deliver) })
	ls, err := listen(d.cfg, d.log)
	defer ls.close()
	d.phases.End("listeners")
	if err != nil {
		return err
	}
	lists, denied, err := denylists.Read(ctx, d.cfg, d.log)
	if err != nil {
		return err
	}
	if err := d.open(o.Sockets, denied); err != nil {
		return err
	}

	addresses := d.lb.Router().OnChange() // before anything can change
	task("packet path", d.lb.Run)
	task("addresses", func(ctx context.Context) error { return d.publisher.FollowAddresses(ctx, addresses) })
	task("flow log", d.flowLog.Run)
	task("health checks", d.checks.Run)
	task("health of endpoints", d.health.Run)
	task("reload", func(ctx context.Context) error { return d.followReload(ctx, o.Signals.Reload) })
	task("deny lists", func(ctx context.Context) error {
		return lists.Follow(ctx, d.lb.Denials().Set, func(list []problem.Problem) { d.problems.Replace(complaints.DenyLists, list...) })
	})
	if o.Watch != nil {
		task("configuration file", func(ctx context.Context) error { return o.Watch.Follow(ctx, o.Signals.Reload, d.log) })
	}
	task("announcement", func(ctx context.Context) error { return d.announcer.Run(ctx, d.publisher.EndLingering) })
	task("problems", d.watchProblems)
	task("late updates", func(ctx context.Context) error { return complaints.FollowLate(ctx, &d.updating, d.problems) })
	workers := process.Workers{
		Configuration: d.cfg, PacketPath: d.lb, Ending: d.ending, Problems: d.problems, Notify: d.notify, Tuned: d.tuned, Log: d.log,
	}
	task("workers", workers.Watch)
	task("service manager", d.notify.Run)
	ls.serve(d, task)
	d.publisher.Begin()
	task("privileges", func(ctx context.Context) error { return d.privileges.Drop(ctx, d.taken, end{d}, d.problems, d.log) })
	<-ctx.Done()
	d.notify.Stopping()
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
		return cause
	}
	return nil
}

// open opens the packet path.
func (d *Daemon) open(sockets *xsk.Transfer, denied []lb.DenyList) (err error) {
	path := packetPath(d.cfg, d.log)
	path.Phases, path.Sockets, path.Stale, path.Denied = d.phases, sockets, d.removeProbePath, denied
	d.attempts = &answers.Attempts{
		Table: attempts.New(table.DefaultMaxEndpoints), LB: func() *lb.LB { return d.lb }, Services: d.publisher.Served,
	}
	path.Attempts = d.attempts.Table
	if d.lb, err = lb.New(path); err != nil {
		return err
	}
	d.flowLog = flowlog.New(flowlog.Config{
		Collector: d.cfg.FlowLog.Collector(), File: d.cfg.FlowLog.JSONFile,
		Table: d.lb.FlowTable(), ServiceNames: d.lb.Tables().ServiceNames, Services: d.publisher.Served, Log: d.log,
	})
	d.tune()
	d.health = d.newHealth()
	d.checks = d.newChecks()
	d.announcer, err = announcer.New(announcer.Config{
		Configuration: d.cfg, PacketPath: d.lb, Node: nodeState{d}, Source: d.source, Events: d.events, Log: d.log,
	})
	if err != nil {
		return err
	}
	d.publisher.Open(publisher.Parts{
		PacketPath: d.lb, Addresses: d.lb.Router(), Announcer: d.announcer, Health: d.health, Checks: d.checks,
	})
	return nil
}

// took tells that traffic is taken.
func (d *Daemon) took(services int) {
	text := fmt.Sprintf("traffic is taken for %d Services of %s", services, d.source)
	d.events.Add(event.New{Kind: event.Start, Text: text + fmt.Sprintf(", %s after the start", time.Since(d.lb.Status().Started).Round(time.Millisecond))})
	close(d.taken)
	go firewall.Warn(d.lb.Tables().Load(), d.cfg.AttachedNames(), d.log)
	d.notify.Ready()
}

// end ends the packet path. After a fault nothing is left for a next process.
func (d *Daemon) end(fault error) error {
	if d.ending.Leaving() && fault == nil {
		d.log.Info("leaving for the next process: connections wait for it", "holdSeconds", d.cfg.Death.HoldSeconds)
		return process.Leave(d.lb, d.notify, d.log)
	}
	if fault == nil { // after a fault a start follows
		d.drains.RemoveFile()
	}
	d.log.Info("leaving: detaching from the interfaces")
	return d.lb.Close()
}

// tune keeps the control plane off the workers' CPUs.
func (d *Daemon) tune() {
	all := d.lb.CPUs()
	pinned := slices.DeleteFunc(slices.Clone(all), func(cpu int) bool { return cpu < 0 })
	d.tuned = tuning.Apply(func(err error) { d.log.Warn(err.Error()) }, len(all), pinned)
}

var reversePathFilters = map[string]worker.ReversePathFilter{
	config.ReversePathAuto: worker.ReversePathAuto, config.ReversePathStrict: worker.ReversePathStrict,
	config.ReversePathLoose: worker.ReversePathLoose, config.ReversePathOff: worker.ReversePathOff,
}

// packetPath is the configuration of the packet path.
func packetPath(cfg *config.Configuration, log *slog.Logger) lb.Config {
	c := lb.Config{
		SNATAddresses: cfg.SNATAddresses(),
		SNATPortLo:    cfg.SNAT.Range().Lo, SNATPortHi: cfg.SNAT.Range().Hi,
		SNATPortsAuto: cfg.SNAT.Ports == config.PortRange{}, ProtectedPorts: cfg.OwnPorts(),
		ConntrackPath:        cfg.Conntrack.Path,
		MaxFlows:             int(cfg.Conntrack.MaxFlows),
		Takeover:             time.Duration(cfg.Conntrack.TakeoverSeconds) * time.Second,
		EndpointRemovalGrace: time.Duration(cfg.Conntrack.EndpointRemovalGraceSeconds) * time.Second,
		Silence:              cfg.Announce.Silence(),
		Hold:                 cfg.Death.Hold(),
		Workers:              int(cfg.Workers.Count),
		CPUs:                 cfg.Workers.CPUs,
		PinDir:               os.Getenv("WEIR_PIN_DIR"),
		ProcSys:              os.Getenv("WEIR_PROC_SYS"),
		StateDir:             filepath.Dir(cfg.Admin.Socket),
		GUEZeroChecksum:      cfg.Forwarding.GUEZeroChecksum,
		FlowRecords:          cfg.FlowLog.PerSecond(),
		FlowCache:            cfg.FlowCache.Mode != config.FlowCacheOff,
		FrameSize:            int(cfg.PacketMemory.FrameSize),
		MinPathMTU:           cfg.Forwarding.MinPathMTU,
		ReversePathFilter:    reversePathFilters[cfg.Forwarding.ReversePathFilter],
		PrefixLimit:          prefixLimit(cfg.Flood),
		Log:                  log,
		Testing: ports.Testing{
			SoftwareChecksums: os.Getenv("WEIR_TX_CHECKSUM") == "software",
			DeclaredLinks:     os.Getenv("WEIR_LINKS"),
			OwnHostUmem:       os.Getenv("WEIR_UMEM") == "two",
		},
	}
	for _, i := range cfg.Attached() {
		c.Interfaces = append(c.Interfaces, ports.Interface{Name: i.Name, Mode: i.Mode, TxChecksum: i.TxChecksum, Hook: i.Hook})
	}
	c.HostVeth4, c.HostVeth6 = cfg.HostVethPrefixes()
	c.HostVethMark, c.HostVethTable = uint32(cfg.HostVeth.Mark), cfg.HostVeth.Table
	return c
}

// prefixLimit is the limit of new connections per source prefix.
func prefixLimit(f config.Flood) ratelimit.PrefixLimit {
	return ratelimit.PrefixLimit{
		PerSecond: uint32(f.NewConnectionsPerPrefix), Bits4: uint8(f.IPv4PrefixLength), Bits6: uint8(f.IPv6PrefixLength),
	}
}
