package announcer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"github.com/weirlb/weir/cmd/weir/config"
	"github.com/weirlb/weir/cmd/weir/source"
	"github.com/weirlb/weir/discovery/addresspool"
	"github.com/weirlb/weir/discovery/kube"
)

// CheckedObjects is what the objects of files and of the API server are for a node.
type CheckedObjects struct {
	// Used is what is in use, "" where none are read.
	Used string
	// Wrong are files that cannot be read, and their objects that are out of service. A start leaves them
	// out. Notes are faults of other authors' objects in the API server, and of what is used in part.
	Wrong, Notes []error
}

// CheckObjects reads the objects of the configuration.
func CheckObjects(ctx context.Context, cfg *config.Configuration) (out CheckedObjects) {
	if !cfg.Announce.HasObjects() {
		return out
	}
	var in objectInput
	in.readFiles(&cfg.Announce)
	away := false
	if len(cfg.Announce.WatchedNamespaces()) > 0 {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		if err := in.list(ctx, cfg); err != nil {
			out.Notes, away = append(out.Notes, fmt.Errorf("objects of the API server: %w", err)), true
		}
	}
	o := newObjects(cfg, &in)
	o.checkPrepend(&cfg.Announce)
	for _, err := range o.faults {
		var f *addresspool.Fault
		wrong := errors.Is(err, in.unread) || errors.As(err, &f) && f.Source != "" && !f.Used && !errors.Is(err, addresspool.ErrNoLinks)
		if wrong && !(away && slices.Contains(o.Faults, f)) { // these may follow from labels and Secrets that are not known
			out.Wrong = append(out.Wrong, err)
		} else {
			out.Notes = append(out.Notes, err)
		}
	}
	out.Used = fmt.Sprintf("%s are for this node", o.counts())
	return out
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
