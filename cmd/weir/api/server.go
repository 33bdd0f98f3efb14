package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/cmd/weir/httpserver"
)

// ErrBusy means that another process serves the socket.
var ErrBusy = errors.New("another Weir is running")

// How many flows /v1/flows gives: when not told, and at most. A list of a
// million would cost the daemon half a gigabyte.
const (
	DefaultFlowLimit = 1000
	MaxFlowLimit     = 100_000
)

// Source provides the answers of a daemon. Methods are called concurrently,
// must not block a worker, and must return when ctx ends.
type Source interface {
	Status(ctx context.Context) (*Status, error)
	// Explain has the fields of `weir explain -o json`.
	Explain(ctx context.Context, q ExplainQuery) (Stream, error)
	// Flows lists at most limit flows that match.
	Flows(ctx context.Context, limit int, match *FlowMatcher) (*FlowList, error)
	// Drops lists packets that were dropped lately.
	Drops(ctx context.Context) (*DropList, error)
	// Frontends has the fields of a FrontendList.
	Frontends(ctx context.Context) (Stream, error)
	// Stop begins to end the daemon for good, and does not wait.
	Stop(ctx context.Context) error
}

// ExplainQuery selects the Services to explain.
type ExplainQuery struct {
	Service string // namespace/name; "": all
	WhatIf  string // a change to imagine, as `weir explain --what-if` takes it; "": none
}

// ErrNotFound is returned by a Source for a Service that does not exist.
var ErrNotFound = errors.New("not found")

// Listen makes the socket path, mode 0600. The socket of a process that is gone is
// replaced; a socket that answers is ErrBusy. Missing directories are
// created.
func Listen(path string) (net.Listener, error) {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("admin socket: %w", err)
	}
	// Two Weirs that start at once must not take each other's new socket
	// for a stale one: the directory's lock leaves no file behind.
	d, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("admin socket: %w", err)
	}
	defer d.Close()
	if err := unix.Flock(int(d.Fd()), unix.LOCK_EX); err != nil {
		return nil, fmt.Errorf("admin socket: lock %s: %w", dir, err)
	}
	if err := removeStale(path); err != nil {
		return nil, fmt.Errorf("admin socket: %w", err)
	}
	// The mode of a socket's inode before bind(2) becomes the mode of the
	// file: there is no moment at which others may connect.
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		if e := c.Control(func(fd uintptr) { err = unix.Fchmod(int(fd), 0o600) }); e != nil {
			return e
		}
		return err
	}}
	l, err := lc.Listen(context.Background(), "unix", path)
	if err != nil {
		return nil, fmt.Errorf("admin socket: %w", err)
	}
	return l, nil
}

func removeStale(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.Mode()&os.ModeSocket == 0 {
		return fmt.Errorf("%s is there and is not a socket", path)
	}
	c, err := net.DialTimeout("unix", path, time.Second)
	if err == nil {
		defer c.Close()
		return fmt.Errorf("%w%s on %s", ErrBusy, peerPID(c), path)
	}
	if !errors.Is(err, unix.ECONNREFUSED) {
		return fmt.Errorf("%w? %s: %w", ErrBusy, path, err)
	}
	return os.Remove(path)
}

// peerPID is " (pid N)" of the process at the other end, or "".
func peerPID(c net.Conn) string {
	raw, err := c.(*net.UnixConn).SyscallConn()
	if err != nil {
		return ""
	}
	var cred *unix.Ucred
	if e := raw.Control(func(fd uintptr) {
		cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); e != nil || err != nil {
		return ""
	}
	return fmt.Sprintf(" (pid %d)", cred.Pid)
}

// Serve serves src on l until ctx ends, then closes l, which removes the socket,
// and returns nil.
func Serve(ctx context.Context, l net.Listener, src Source, log *slog.Logger) error {
	err := httpserver.Serve(ctx, l, &http.Server{
		Handler:           Handler(src),
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       5 * time.Second,
		WriteTimeout:      answerTime,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	})
	if err != nil {
		return fmt.Errorf("admin socket: %w", err)
	}
	return nil
}

// Handler is the API over src.
func Handler(src Source) http.Handler { return handler(src, readerStall) }

// handler is Handler with the time after which a stuck reader is given up.
func handler(src Source, stall time.Duration) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/status", func(w http.ResponseWriter, r *http.Request) {
		s, err := src.Status(r.Context())
		reply(w, s, err)
	})
	mux.HandleFunc("GET /v1/explain", explainHandler(src, stall))
	mux.HandleFunc("GET /v1/flows", flowsHandler(src))
	mux.HandleFunc("GET /v1/drops", func(w http.ResponseWriter, r *http.Request) {
		s, err := src.Drops(r.Context())
		reply(w, s, err)
	})
	mux.HandleFunc("GET /v1/frontends", frontendsHandler(src, stall))
	mux.HandleFunc("POST /v1/stop", func(w http.ResponseWriter, r *http.Request) {
		reply(w, struct{}{}, src.Stop(r.Context()))
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		refuse(w, http.StatusNotFound, fmt.Errorf("%s %s: there is no such thing here", r.Method, r.URL.Path))
	})
	return mux
}

func explainHandler(src Source, stall time.Duration) http.HandlerFunc {
	all, one := &heavy{kind: "the explanation of all Services", stall: stall}, &heavy{stall: stall}
	return func(w http.ResponseWriter, r *http.Request) {
		q := ExplainQuery{r.FormValue("service"), r.FormValue("whatIf")}
		h := one
		if q.Service == "" {
			h = all
			if !h.admit(w) {
				return
			}
			defer h.leave()
		}
		s, err := src.Explain(r.Context(), q)
		h.stream(w, r, s, err)
	}
}

func frontendsHandler(src Source, stall time.Duration) http.HandlerFunc {
	h := &heavy{kind: "frontends", stall: stall}
	return func(w http.ResponseWriter, r *http.Request) {
		if !h.admit(w) {
			return
		}
		defer h.leave()
		s, err := src.Frontends(r.Context())
		h.stream(w, r, s, err)
	}
}

func flowsHandler(src Source) http.HandlerFunc {
	h := &heavy{kind: fmt.Sprintf("more than %d flows", DefaultFlowLimit)}
	return func(w http.ResponseWriter, r *http.Request) {
		limit := DefaultFlowLimit
		if s := r.FormValue("limit"); s != "" {
			n, err := strconv.Atoi(s)
			if err != nil || n < 1 {
				refuse(w, http.StatusBadRequest, fmt.Errorf("limit: expected a positive number, got %q", s))
				return
			}
			limit = min(n, MaxFlowLimit)
		}
		filter := FlowFilter{r.FormValue("client"), r.FormValue("frontend"), r.FormValue("endpoint"), r.FormValue("service"), r.FormValue("state")}
		m, err := filter.Matcher()
		if err != nil {
			refuse(w, http.StatusBadRequest, err)
			return
		}
		if limit > DefaultFlowLimit {
			if !h.admit(w) {
				return
			}
			defer h.leave()
		}
		s, err := src.Flows(r.Context(), limit, m)
		reply(w, s, err)
	}
}

func reply(w http.ResponseWriter, v any, err error) {
	switch {
	case errors.Is(err, ErrNotFound):
		refuse(w, http.StatusNotFound, err)
	case err != nil:
		refuse(w, http.StatusInternalServerError, err)
	default:
		w.Header().Set("Content-Type", "application/json")
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		_ = enc.Encode(v) // the client went away
	}
}

type failure struct {
	Error string `json:"error"`
}

func refuse(w http.ResponseWriter, code int, err error) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(failure{err.Error()})
}
