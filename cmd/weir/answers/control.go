package answers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"runtime/pprof"
	"strings"
	"time"

	"github.com/weirlb/weir/cmd/weir/api"
)

// LogLevel implements api.Source.
func (src *Source) LogLevel(context.Context) (*api.LogLevel, error) {
	if src.Level == nil {
		return nil, errors.New("the level of the log cannot be changed")
	}
	return &api.LogLevel{Level: strings.ToLower(src.Level.Level().String())}, nil
}

// SetLogLevel implements api.Source.
func (src *Source) SetLogLevel(ctx context.Context, level string) (*api.LogLevel, error) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return nil, fmt.Errorf("level: %w", err)
	}
	if src.Level != nil {
		src.Log.Info("the operator changes the level of the log", "from", src.Level.Level(), "to", l)
		src.Level.Set(l)
	}
	return src.LogLevel(ctx)
}

// Profile implements api.Source.
func (src *Source) Profile(ctx context.Context, w io.Writer, kind string, length time.Duration) error {
	if kind != "cpu" {
		return pprof.Lookup(kind).WriteTo(w, 0)
	}
	if err := pprof.StartCPUProfile(w); err != nil {
		return err
	}
	defer pprof.StopCPUProfile()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(length):
		return nil
	}
}
