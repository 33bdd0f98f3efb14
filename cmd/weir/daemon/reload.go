package daemon

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/weirlb/weir/cmd/weir/complaints"
	"github.com/weirlb/weir/cmd/weir/config"
	"github.com/weirlb/weir/cmd/weir/event"
	"github.com/weirlb/weir/cmd/weir/problem"
)

// reload takes over the fields that can change while running. A file with errors changes
// nothing.
func (d *Daemon) reload() {
	defer d.notify.Reloading()()
	d.source.Reload()
	next, err := d.cfg.Reload()
	if errors.Is(err, config.ErrNotReloadable) {
		return
	}
	if err != nil {
		var faults []problem.Problem
		for _, e := range problem.Flatten(err) {
			faults = append(faults, problem.New(problem.Configuration, "", "%v: the configuration stays as it was", e))
		}
		d.problems.Set(complaints.Reload, problem.Weir, faults...)
		return
	}
	var fields []string
	d.publisher.Reconfigure(func(cfg *config.Configuration) {
		fields = append(d.takeOverConfiguration(next), d.announcer.ChangedPasswords(&cfg.Announce)...)
		if s, ok := d.source.(interface{ Reconfigured(*config.Configuration) }); ok {
			s.Reconfigured(cfg)
		}
		d.lb.LimitPrefixes(prefixLimit(cfg.Flood))
		d.profiling.Store(cfg.EnableProfiling)
	}, func(refused string) { d.reloaded(fields, refused) })
}

// reloaded tells of a reload, with the fields that take effect at the next start and the objects of
// announcements that are refused.
func (d *Daemon) reloaded(fields []string, refused string) {
	text := "the configuration was read again"
	if len(fields) > 0 {
		text += "; at the next start take effect: " + strings.Join(fields, ", ")
	}
	if refused != "" {
		text += "; announce.objects: " + refused
	}
	var later []problem.Problem
	for _, field := range fields {
		later = append(later, problem.New(problem.RestartNeeded, field, "changed: takes effect at the next start"))
	}
	d.problems.Set(complaints.Reload, problem.Weir, later...)
	d.log.Info("reloaded")
	d.events.Add(event.New{Kind: event.Reload, Identity: fmt.Sprint(fields, refused != ""), Text: text, Logged: true})
}

// takeOverConfiguration takes the reloadable fields of next, and returns the others that differ.
// An unchanged level of the log leaves that of weir log-level.
func (d *Daemon) takeOverConfiguration(next *config.Configuration) (needRestart []string) {
	before := d.cfg.Logging.Level
	needRestart = d.cfg.TakeOver(next)
	if d.level == nil || d.cfg.Logging.Level == before {
		return needRestart
	}
	if level, err := config.ParseLevel(d.cfg.Logging.Level); err == nil {
		d.level.Set(level)
	}
	return needRestart
}

// followReload reads the configuration and the manifests again on SIGHUP.
func (d *Daemon) followReload(ctx context.Context, reload <-chan os.Signal) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-reload:
			d.reload()
		}
	}
}
