package source

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"sync"

	"github.com/weirlb/weir/cmd/weir/config"
	"github.com/weirlb/weir/cmd/weir/lastknown"
	"github.com/weirlb/weir/cmd/weir/problem"
	"github.com/weirlb/weir/discovery"
	"github.com/weirlb/weir/discovery/names"
)

// resolvConf has the resolvers of the machine.
const resolvConf = "/etc/resolv.conf"

// resolves reports whether names of EndpointSlices are resolved.
func resolves(cfg *config.Configuration) bool {
	return cfg.Discovery.Manifests != nil || cfg.Discovery.Names != nil && cfg.Discovery.Names.InCluster
}

// resolution resolves names for a source.
type resolution struct {
	resolver *names.Resolver // nil: none are resolved
	changed  func()
	keeper   *lastknown.Keeper // nil: nothing is kept
	file     string            // of the answers
	// startFault is why the answers of the process before could not be read, "" if they could.
	startFault string
}

func newNames(cfg *config.Configuration, log *slog.Logger) *resolution {
	r := &resolution{}
	if !resolves(cfg) {
		return r
	}
	servers := names.SystemServers(resolvConf)
	if n := cfg.Discovery.Names; n != nil && n.Resolver != "" {
		if at, ok := n.Server(); ok {
			servers = names.Server(at)
		}
	}
	nc := names.Config{Servers: servers, Own: ownAddresses, Changed: r.answersChanged}
	if cfg.StateDir != "" {
		r.file = filepath.Join(cfg.StateDir, lastknown.NamesFile)
		var err error
		if nc.Kept, err = lastknown.LoadNames(r.file); err != nil && !errors.Is(err, fs.ErrNotExist) {
			log.Error("start without the last answers of the DNS", "err", err)
			r.startFault = err.Error()
		}
	}
	r.resolver = names.New(nc)
	if r.file != "" {
		r.keeper = lastknown.NewNamesKeeper(r.file, r.resolver.Answers, log)
	}
	return r
}

func (r *resolution) answersChanged() {
	r.changed()
	if r.keeper != nil {
		r.keeper.Changed()
	}
}

// problems are those of the file of answers, whose log is that of its package.
func (r *resolution) problems() (out []problem.Problem) {
	add := func(reason string) {
		out = append(out, problem.Problem{Kind: problem.StateFile, Object: "File " + r.file, Reason: reason, Logged: true})
	}
	if r.keeper == nil {
		return nil
	}
	if r.startFault != "" && r.keeper.Saved().IsZero() {
		add(r.startFault)
	}
	if err := r.keeper.Err(); err != nil {
		add(err.Error())
	}
	return out
}

// resolving are the options of a store whose names are resolved.
func (r *resolution) resolving(o discovery.Options) discovery.Options {
	if r.resolver != nil {
		o.Names = r.resolver
	}
	return o
}

// run resolves until ctx ends or the function that it returns is called, which waits for the end.
func (r *resolution) run(ctx context.Context) (end func()) {
	if r.resolver == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	var tasks sync.WaitGroup
	tasks.Go(func() { r.resolver.Run(ctx) })
	if r.keeper != nil {
		tasks.Go(func() { r.keeper.Run(ctx) })
	}
	return func() {
		cancel()
		tasks.Wait()
	}
}

// OwnAddress reports whether this machine has an address.
func OwnAddress(a netip.Addr) bool { return slices.Contains(ownAddresses(), a) }

// ownAddresses are the addresses of this machine.
func ownAddresses() (out []netip.Addr) {
	list, err := net.InterfaceAddrs()
	if err != nil {
		return nil
	}
	for _, h := range list {
		if prefix, err := netip.ParsePrefix(h.String()); err == nil {
			out = append(out, prefix.Addr().Unmap())
		}
	}
	return out
}
