package source

import (
	"context"
	"net"
	"net/netip"
	"slices"

	"github.com/weirlb/weir/cmd/weir/config"
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
}

func newNames(cfg *config.Configuration) *resolution {
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
	r.resolver = names.New(names.Config{Servers: servers, Own: ownAddresses, Changed: func() { r.changed() }})
	return r
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
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.resolver.Run(ctx)
	}()
	return func() {
		cancel()
		<-done
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
