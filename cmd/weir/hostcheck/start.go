package hostcheck

import (
	"errors"
	"net"
	"net/netip"
	"os"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/cmd/weir/config"
	"github.com/weirlb/weir/conntrack"
)

// checkStart looks at what weir run needs before it touches the packet path: the group of the admin socket, the
// token of the status page, addresses to listen on, and memory for connections. That a port is in use is no
// fault here: a running Weir uses it.
func checkStart(fs *findings, cfg *config.Configuration) {
	if err := (api.Access{Group: cfg.Admin.Group}).Check(); err != nil {
		fs.add(Wrong, "configuration", "%v", err)
	}
	if _, err := cfg.StatusPage.Token(); err != nil {
		fs.add(Wrong, "configuration", "%v", err)
	}
	for _, l := range cfg.TCPAddresses() {
		a, err := netip.ParseAddrPort(l.Address)
		if err != nil {
			continue // none, or told by Configuration.Validate
		}
		if err := bindable(a.Addr()); err != nil {
			fs.add(Wrong, "configuration", "%s: listen on %s: %v", l.Field, a, err)
		}
	}
	if err := conntrack.CheckMemory(int64(cfg.Conntrack.MaxFlows), cfg.FlowLog.PerSecond() > 0); err != nil {
		fs.add(Wrong, "configuration", "conntrack.maxFlows: %v", err)
	}
}

// bindable says why no program can listen on an address of this machine. It takes a port that is free.
func bindable(a netip.Addr) error {
	l, err := net.Listen("tcp", netip.AddrPortFrom(a, 0).String())
	if err == nil {
		return l.Close()
	}
	var call *os.SyscallError
	if errors.As(err, &call) {
		return call
	}
	return err
}
