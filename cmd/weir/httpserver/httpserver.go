// Package httpserver runs an HTTP server for the lifetime of a context, with bounds for clients that
// nobody knows.
package httpserver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"
)

// grace is the time that requests have to finish at the end.
const grace = time.Second

// Times for a client.
const (
	readTime  = 5 * time.Second // for a request, also for its header alone
	idleTime  = 5 * time.Second // between two requests
	writeTime = 10 * time.Second
)

const maxHeaderBytes = 16 << 10

// Options are the bounds of a server.
type Options struct {
	// Limit bounds the connections, also those of other servers with the same Limit.
	Limit *Limit
	// WriteTimeout is the time for an answer; 0 is 10 s.
	WriteTimeout time.Duration
	// Once has each answer end its connection: that of a probe.
	Once bool
	// ConnContext is that of http.Server. Its connection has NetConn.
	ConnContext func(ctx context.Context, c net.Conn) context.Context
	Log         *slog.Logger
}

// Server is an HTTP server with bounds.
type Server struct {
	http  *http.Server
	limit *Limit
}

// New makes a server that answers by h.
func New(h http.Handler, o Options) *Server {
	s := &http.Server{
		Handler:           h,
		ReadHeaderTimeout: readTime,
		ReadTimeout:       readTime,
		WriteTimeout:      cmp.Or(o.WriteTimeout, writeTime),
		IdleTimeout:       idleTime,
		MaxHeaderBytes:    maxHeaderBytes,
		ConnContext:       o.ConnContext,
		ErrorLog:          slog.NewLogLogger(o.Log.Handler(), slog.LevelDebug),
	}
	s.SetKeepAlivesEnabled(!o.Once)
	return &Server{s, o.Limit}
}

// Serve answers on l until Close, and returns nil then.
func (s *Server) Serve(l net.Listener) error {
	if err := s.http.Serve(s.limit.listener(l)); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve on %s: %w", l.Addr(), err)
	}
	return nil
}

// Close closes listeners and connections.
func (s *Server) Close() error { return s.http.Close() }

// Serve serves h on l until ctx ends, closes l, and returns nil then. The caller
// listens, so that an address in use is an error at the start.
func Serve(ctx context.Context, l net.Listener, h http.Handler, o Options) error {
	s := New(h, o)
	stop := context.AfterFunc(ctx, func() {
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
		defer cancel()
		if s.http.Shutdown(end) != nil {
			s.Close()
		}
	})
	defer stop()
	return s.Serve(l)
}
