package config

import (
	"fmt"
	"io"
	"log/slog"
)

// ParseLevel parses debug, info, warn or error.
func ParseLevel(s string) (slog.Level, error) {
	switch s {
	case "debug":
		return slog.LevelDebug, nil
	case "info":
		return slog.LevelInfo, nil
	case "warn":
		return slog.LevelWarn, nil
	case "error":
		return slog.LevelError, nil
	}
	return 0, fmt.Errorf("must be debug, info, warn or error, is %q", s)
}

// Logger returns the logger that l describes, writing to w, and the level,
// which may be changed while it is in use.
func (l Logging) Logger(w io.Writer) (*slog.Logger, *slog.LevelVar) {
	level := new(slog.LevelVar)
	if v, err := ParseLevel(l.Level); err == nil {
		level.Set(v)
	}
	opts := &slog.HandlerOptions{Level: level}
	if l.Format == "json" {
		return slog.New(slog.NewJSONHandler(w, opts)), level
	}
	return slog.New(slog.NewTextHandler(w, opts)), level
}

func validateLogging(c *Configuration, r *report) {
	if _, err := ParseLevel(c.Logging.Level); err != nil {
		r.addf("logging.level", "%v", err)
	}
	if f := c.Logging.Format; f != "text" && f != "json" {
		r.addf("logging.format", "must be text or json, is %q", f)
	}
}
