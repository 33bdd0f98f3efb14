package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/cmd/weir/config"
	"github.com/weirlb/weir/cmd/weir/healthz"
	"github.com/weirlb/weir/cmd/weir/metrics"
	"github.com/weirlb/weir/cmd/weir/source"
	"github.com/weirlb/weir/cmd/weir/statuspage"
)

// listeners are opened before anything else: an address in use, or another
// Weir, is then an error that leaves the packet path untouched.
type listeners struct {
	admin, metrics, health net.Listener
	page                   net.Listener
	pageToken              string
	socket                 string
	cfg                    *config.Configuration
	log                    *slog.Logger
}

func listen(cfg *config.Configuration, log *slog.Logger) (_ *listeners, err error) {
	ls := &listeners{socket: cfg.Admin.Socket, cfg: cfg, log: log}
	defer func() {
		if err != nil {
			ls.close()
		}
	}()
	if ls.admin, err = api.Listen(ls.socket); err != nil {
		return nil, err
	}
	switch err = adminAccess(cfg).Share(ls.socket); {
	case errors.Is(err, fs.ErrPermission): // a process that was executed again has given CAP_CHOWN up
		log.Warn("admin.group has no access to the admin socket", "err", err)
	case err != nil:
		return nil, err
	}
	if ls.metrics, err = listenTCP("metricsBindAddress", cfg.MetricsBindAddress); err != nil {
		return nil, err
	}
	if ls.health, err = listenTCP("healthzBindAddress", cfg.HealthzBindAddress); err != nil {
		return nil, err
	}
	if ls.pageToken, err = cfg.StatusPage.Token(); err != nil {
		return nil, err
	}
	if ls.page, err = listenTCP("statusPage.bindAddress", cfg.StatusPage.BindAddress); err != nil {
		return nil, err
	}
	return ls, nil
}

// adminAccess is that to the admin socket.
func adminAccess(cfg *config.Configuration) api.Access {
	return api.Access{Group: cfg.Admin.Group, Full: cfg.Admin.GroupAccess == config.GroupAccessFull}
}

func listenTCP(field, address string) (net.Listener, error) {
	if address == "" {
		return nil, nil
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", field, err)
	}
	return l, nil
}

func (ls *listeners) serve(d *Daemon, task func(string, func(context.Context) error)) {
	a := answersOf(d)
	task("admin socket", func(ctx context.Context) error { return api.Serve(ctx, ls.admin, a, adminAccess(ls.cfg), ls.log) })
	if ls.metrics != nil {
		r := metrics.NewRegistry(a)
		if n := ls.cfg.MetricsServices; n > 0 {
			r.MustRegister(metrics.NewServices(a, n), metrics.NewEndpoints(d.attempts))
		}
		if c, ok := d.source.(*source.Cluster); ok {
			r.MustRegister(c.Collector())
		}
		h := metrics.Handler(r, d.profiling.Load, ls.log)
		task("metrics", func(ctx context.Context) error { return metrics.Serve(ctx, ls.metrics, h, ls.log) })
	}
	if ls.page != nil {
		loopback := ls.page.Addr().(*net.TCPAddr).IP.IsLoopback()
		p := statuspage.New(a, loopback, ls.pageToken, ls.log)
		task("status page", func(ctx context.Context) error { return p.Serve(ctx, ls.page) })
	}
	if ls.health != nil {
		task("health", func(ctx context.Context) error { return healthz.Serve(ctx, ls.health, d, ls.log) })
	}
}

// close closes the listeners that serve has not taken over, and is harmless after it.
func (ls *listeners) close() {
	if ls == nil {
		return
	}
	for _, l := range []net.Listener{ls.admin, ls.metrics, ls.health, ls.page} {
		if l != nil {
			_ = l.Close()
		}
	}
	if ls.admin != nil {
		_ = os.Remove(ls.socket)
	}
}
