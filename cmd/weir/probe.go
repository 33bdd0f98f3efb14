package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/weirlb/weir/cmd/weir/config"
	"github.com/weirlb/weir/cmd/weir/endpointhealth"
	"github.com/weirlb/weir/cmd/weir/source"
	"github.com/weirlb/weir/cmd/weir/translate"
	"github.com/weirlb/weir/discovery/manifest"
	"github.com/weirlb/weir/discovery/prober"
)

// probesAtOnce is the number of probes of weir check at the same time.
const probesAtOnce = 64

// checkProbes sends each probe of the health checks of the manifests once, and prints the answers.
func checkProbes(ctx context.Context, stdout, stderr io.Writer, flags *config.Flags) (err error) {
	cfg, err := flags.Load()
	if err != nil {
		return err
	}
	if cfg.Discovery.Manifests == nil || cfg.Discovery.Manifests.Path == "" {
		return errors.New("--probe: needs discovery.manifests: in a cluster ask a running Weir by weir endpoints")
	}
	src := manifest.New(manifest.Config{
		Path: cfg.Discovery.Manifests.Path, Log: slog.New(slog.DiscardHandler),
		Store: source.Examined(cfg),
	})
	if _, err := src.Load(); err != nil {
		return err
	}
	src.Flush()
	if err := otherNetwork(ctx, cfg); err != nil {
		fmt.Fprintf(stdout, "note  network namespace: %v\n", err)
	}
	type probed struct {
		service string
		prober.Target
		took time.Duration
		err  error
	}
	var list []probed
	guard := translate.GuardOf(cfg, source.OwnAddress)
	for _, svc := range src.Services() {
		for _, t := range endpointhealth.Targets(svc, &guard) {
			list = append(list, probed{service: svc.Name.String(), Target: t})
		}
	}
	path := endpointhealth.Path(cfg, true, nil)
	defer func() { err = errors.Join(err, path.Close()) }()
	dial := endpointhealth.Dialer(path)
	var all sync.WaitGroup
	places := make(chan struct{}, probesAtOnce)
	for i := range list {
		places <- struct{}{}
		all.Go(func() {
			p, began := &list[i], time.Now()
			p.err = dial.Probe(ctx, &p.Target)
			p.took = time.Since(began)
			<-places
		})
	}
	all.Wait()
	wrong := false
	for i := range list {
		p := &list[i]
		if p.err != nil {
			wrong = true
			printError(stderr, fmt.Errorf("%s: %s %s: %w", p.service, p.Check.Kind, p.Target, p.err))
			continue
		}
		fmt.Fprintf(stdout, "ok    %s: %s %s: passes in %v\n", p.service, p.Check.Kind, p.Target, p.took.Round(10*time.Microsecond))
	}
	if len(list) == 0 {
		fmt.Fprintln(stdout, "No Service of the manifests has a health check with endpoints")
	}
	if wrong {
		return silent(exitFailed)
	}
	return nil
}
