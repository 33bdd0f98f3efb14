package api

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"
)

// LogLevel is the answer to /v1/log-level.
type LogLevel struct {
	Level string `json:"level"` // debug, info, warn, error
}

// LogLevels are the levels of the log.
var LogLevels = []string{"debug", "info", "warn", "error"}

// Profiles are the kinds of profiles: of package runtime/pprof, and cpu.
var Profiles = []string{"cpu", "heap", "allocs", "goroutine", "mutex", "block", "threadcreate"}

// MaxProfile is how long a profile of the CPU may take.
const MaxProfile = 60 * time.Second

// ControlSource changes the daemon while it runs.
type ControlSource interface {
	LogLevel(ctx context.Context) (*LogLevel, error)
	// SetLogLevel holds until the next change of the configuration's level or the end.
	SetLogLevel(ctx context.Context, level string) (*LogLevel, error)
	// Profile writes a profile in the format of pprof.
	Profile(ctx context.Context, w io.Writer, kind string, d time.Duration) error
}

// controlRoutes are those that change the daemon.
func controlRoutes(src Source, wait time.Duration) []route {
	profiling := newPlaces("a profile", 1, wait)
	return []route{{
		method: "GET", path: "/v1/log-level", summary: "The level of the log.", answer: LogLevel{},
		handle: func(w http.ResponseWriter, r *http.Request) {
			l, err := src.LogLevel(r.Context())
			reply(w, l, err)
		},
	}, {
		method: "PUT", path: "/v1/log-level", summary: "Change the level of the log until the end of the process.", answer: LogLevel{}, full: true,
		params: []param{{name: "level", usage: "the new level", enum: LogLevels, required: true}},
		handle: func(w http.ResponseWriter, r *http.Request) {
			level := r.FormValue("level")
			if !slices.Contains(LogLevels, level) {
				refuse(w, http.StatusBadRequest, fmt.Errorf("level: expected %s, got %q", strings.Join(LogLevels, ", "), level))
				return
			}
			l, err := src.SetLogLevel(r.Context(), level)
			reply(w, l, err)
		},
	}, {
		method: "GET", path: "/v1/profile", summary: "A profile of the daemon, in the format of pprof.", answer: []byte{}, produces: "application/octet-stream", full: true,
		params: []param{
			{name: "kind", usage: "the profile", enum: Profiles, required: true},
			{name: "seconds", kind: "integer", usage: fmt.Sprintf("how long, of cpu alone; absent: 10, at most %d", int(MaxProfile.Seconds()))},
		},
		handle: func(w http.ResponseWriter, r *http.Request) {
			kind := r.FormValue("kind")
			seconds, err := number(r, "seconds", 10, int(MaxProfile.Seconds()))
			if err == nil && !slices.Contains(Profiles, kind) {
				err = fmt.Errorf("kind: expected %s, got %q", strings.Join(Profiles, ", "), kind)
			}
			if err != nil {
				refuse(w, http.StatusBadRequest, err)
				return
			}
			leave := profiling.admit(w, r)
			if leave == nil {
				return
			}
			defer leave()
			writeProfile(w, r, src, kind, time.Duration(seconds)*time.Second)
		},
	}}
}

// writeProfile answers with a profile, or with an error if nothing was written.
func writeProfile(w http.ResponseWriter, r *http.Request, src Source, kind string, d time.Duration) {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(d + readerStall))
	w.Header().Set("Content-Type", "application/octet-stream")
	out := &counted{w: w}
	err := src.Profile(r.Context(), out, kind, d)
	switch {
	case err != nil && out.n == 0:
		reply(w, nil, err)
	case err != nil:
		panic(http.ErrAbortHandler)
	}
}

// counted counts what is written.
type counted struct {
	w io.Writer
	n int
}

func (c *counted) Write(b []byte) (int, error) {
	n, err := c.w.Write(b)
	c.n += n
	return n, err
}
