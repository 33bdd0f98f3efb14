package metrics

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/weirlb/weir/cmd/weir/httpserver"
)

// Handler serves /metrics, and while profiling reports true /debug/pprof too.
func Handler(reg interface {
	prometheus.Gatherer
	prometheus.Registerer
}, profiling func() bool, log *slog.Logger) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(reg, promhttp.HandlerOpts{
		Registry:            reg,
		ErrorLog:            slog.NewLogLogger(log.Handler(), slog.LevelWarn),
		MaxRequestsInFlight: 4,
		Timeout:             2 * scrapeTimeout,
	}))
	handle := func(pattern string, h http.HandlerFunc) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			if !profiling() {
				http.NotFound(w, r)
				return
			}
			h(w, r)
		})
	}
	handle("GET /debug/pprof/", pprof.Index)
	handle("GET /debug/pprof/cmdline", pprof.Cmdline)
	handle("GET /debug/pprof/profile", pprof.Profile)
	handle("GET /debug/pprof/symbol", pprof.Symbol)
	handle("POST /debug/pprof/symbol", pprof.Symbol)
	handle("GET /debug/pprof/trace", pprof.Trace)
	return mux
}

// maxConnections is the most connections at the same time.
const maxConnections = 64

// Serve serves h on l until ctx ends, and returns nil then.
func Serve(ctx context.Context, l net.Listener, h http.Handler, log *slog.Logger) error {
	const writeTime = 2 * time.Minute // a CPU profile takes 30 s and more
	return httpserver.Serve(ctx, l, h, httpserver.Options{Limit: httpserver.NewLimit(maxConnections), WriteTimeout: writeTime, Log: log})
}
