package announcer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/weirlb/weir/cmd/weir/config"
	"github.com/weirlb/weir/cmd/weir/source"
	"github.com/weirlb/weir/discovery/kube"
)

// CheckObjects are the objects of files and of the API server that are out of service on this node,
// and used is what is in use, "" where none are read.
func CheckObjects(ctx context.Context, cfg *config.Configuration) (used string, faults []error) {
	if !cfg.Announce.HasObjects() {
		return "", nil
	}
	var in objectInput
	in.readFiles(&cfg.Announce)
	if len(cfg.Announce.WatchedNamespaces()) > 0 {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		if err := in.list(ctx, cfg); err != nil {
			faults = append(faults, fmt.Errorf("objects of the API server: %w", err))
		}
	}
	o := newObjects(cfg, &in)
	o.checkPrepend(&cfg.Announce)
	return fmt.Sprintf("%d BGPPeers and %d BGPAdvertisements are for this node", len(o.Peers), len(o.Routes)), append(faults, o.faults...)
}

// list reads the objects of the API server once.
func (in *objectInput) list(ctx context.Context, cfg *config.Configuration) error {
	if cfg.Discovery.Kubernetes == nil {
		return errors.New("discovery.kubernetes must be set")
	}
	kc, err := source.ClusterConfig(cfg)
	if err != nil {
		return err
	}
	p, err := kube.NewPoolObjects(poolConfig(&cfg.Announce, kc.REST, func() {}, slog.New(slog.DiscardHandler)))
	if err != nil {
		return err
	}
	if err := p.Look(ctx); err != nil {
		return err
	}
	if !p.Synced() {
		return fmt.Errorf("not all were listed in time: %v", p.Faults())
	}
	in.secret = p.Secret
	if in.labels, err = kube.ReadNodeLabels(ctx, kc.REST, cfg.NodeName); err != nil {
		return err
	}
	in.listed, err = p.Objects()
	return err
}
