package daemon

import (
	"context"
	"errors"
	"log/slog"

	"github.com/weirlb/weir/cmd/weir/config"
	"github.com/weirlb/weir/cmd/weir/program"
	"github.com/weirlb/weir/discovery"
	"github.com/weirlb/weir/discovery/manifest"
)

// newSource makes the source that the configuration names.
func newSource(ctx context.Context, cfg *config.Configuration, log *slog.Logger) (Source, error) {
	if m := cfg.Discovery.Manifests; m != nil {
		return manifests{manifest.New(manifest.Config{
			Path:  m.Path,
			Store: discovery.Options{NodeName: cfg.NodeName, ServiceProxyName: cfg.ServiceProxyName, Supported: program.Supported},
			Log:   log,
		}), m.Path}, nil
	}
	if cfg.Discovery.Kubernetes != nil {
		return newCluster(ctx, cfg, log)
	}
	return nil, errors.New("discovery: no source is configured")
}

// manifests is the source of files.
type manifests struct {
	*manifest.Source
	path string
}

func (m manifests) Errors() []string {
	var out []string
	for _, e := range m.Report().Errors {
		out = append(out, e.Error())
	}
	return out
}

func (m manifests) String() string { return "manifests " + m.path }
