// Package denylists reads the files and ConfigMaps of denyLists, and follows them.
package denylists

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	"github.com/weirlb/weir/cmd/weir/config"
	"github.com/weirlb/weir/cmd/weir/problem"
	"github.com/weirlb/weir/lb"
	"github.com/weirlb/weir/lb/aligned"
)

// lookEvery is how often the files are looked at. One that has changed is read when it is the same
// at the next look: whoever writes it may not be done.
const lookEvery = 2 * time.Second

// mostSkipped bounds the looks between two attempts to take a list that is refused: reading a large one again and again
// costs CPU time and memory.
const mostSkipped = 30

// Lists are the deny lists of a configuration.
type Lists struct {
	log  *slog.Logger
	list []list
	maps *maps // nil without ConfigMaps
}

// list is a deny list.
type list struct {
	name, field string
	from        origin
	err         error // of the last reading
	known       bool  // a list is in force
	refused     int   // looks to leave out after the next refusal, and
	skip        int   // after the last
}

// origin is where a list is from.
type origin interface {
	// changed reports whether there is something to read that read has not seen.
	changed() bool
	// read returns the prefixes. taken has the origin keep what was read last, and is called again
	// until it returns no error.
	read() ([]netip.Prefix, error)
	taken() error
	// forget has what was read last be a change, which is not kept.
	forget()
}

// Read reads all lists, and logs the changes of later. ConfigMaps are followed until ctx ends: one
// that was never read is waited for, for a bounded time, and is empty if it does not come. An error
// names each file that is wrong, and the first line.
func Read(ctx context.Context, cfg *config.Configuration, log *slog.Logger) (*Lists, []lb.DenyList, error) {
	l, lists, err := open(ctx, cfg, log)
	if err != nil {
		return nil, nil, err
	}
	var errs []error
	for i := range l.list {
		if _, ok := l.list[i].from.(*file); ok {
			errs = append(errs, l.list[i].err)
		}
	}
	return l, lists, errors.Join(errs...)
}

// Check reads all lists once, without those of an earlier process. Each list has an error or nil, which
// is ErrUnread where the API server does not tell the ConfigMap.
func Check(ctx context.Context, cfg *config.Configuration) ([]lb.DenyList, []error, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	once := *cfg
	once.StateDir = ""
	l, lists, err := open(ctx, &once, slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, nil, err
	}
	errs := make([]error, len(l.list))
	for i := range l.list {
		errs[i] = l.list[i].err
	}
	return lists, errs, nil
}

// open reads the lists for the first time.
func open(ctx context.Context, cfg *config.Configuration, log *slog.Logger) (l *Lists, lists []lb.DenyList, err error) {
	l = &Lists{log: log, list: make([]list, len(cfg.DenyLists))}
	if l.maps, err = newMaps(cfg, log); err != nil {
		return nil, nil, err
	}
	for i := range cfg.DenyLists {
		c, at := &cfg.DenyLists[i], fmt.Sprintf("denyLists[%d].", i)
		if c.ConfigMap != "" {
			l.list[i] = list{name: c.Name, field: at + "configMap", from: l.maps.origin(c)}
		} else {
			l.list[i] = list{name: c.Name, field: at + "file", from: &file{path: c.File, seen: stampOf(c.File)}}
		}
	}
	l.maps.start(ctx)
	for i := range cfg.DenyLists {
		c := &cfg.DenyLists[i]
		lists = append(lists, lb.DenyList{
			Name: c.Name, Prefixes: l.list[i].first(), Keep: c.Established == config.DeniedKeep, Services: c.Scope == config.ScopeServices,
		})
	}
	return l, lists, nil
}

// first reads the list for the first time.
func (l *list) first() []netip.Prefix {
	prefixes := l.read()
	l.known = l.err == nil
	return prefixes
}

// read reads the list; nil after an error, which is the list's.
func (l *list) read() []netip.Prefix {
	prefixes, err := l.from.read()
	if l.err = err; err != nil {
		l.err = fmt.Errorf("deny list %s: %w", l.name, err)
		return nil
	}
	return prefixes
}

// Follow gives each list that has changed to deny, by number, and the problems with lists to
// complain, until ctx ends.
func (l *Lists) Follow(ctx context.Context, deny func(int, []netip.Prefix) error, complain func([]problem.Problem)) error {
	if len(l.list) == 0 {
		return nil
	}
	defer l.maps.wait()
	tick := aligned.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		complain(l.problems())
		select {
		case <-ctx.Done():
			return nil
		case <-l.maps.change():
		case <-tick.C:
		}
		l.look(deny)
	}
}

// look reads the lists that have changed. After an error a list stays as it was.
func (l *Lists) look(deny func(int, []netip.Prefix) error) {
	for i := range l.list {
		s := &l.list[i]
		if !s.from.changed() {
			continue
		}
		if s.skip > 0 {
			s.skip--
			continue
		}
		prefixes := s.read()
		if s.err == nil {
			if s.err = deny(i, prefixes); s.err != nil { // memory may be there later
				s.from.forget()
				s.refused = min(2*s.refused+1, mostSkipped)
				s.skip = s.refused
			}
		}
		if s.err == nil {
			s.known, s.refused = true, 0
			l.log.Info("deny list changed", "name", s.name, "prefixes", len(prefixes))
		}
	}
}

// problems are those with lists, and with their ConfigMaps. What is new is kept before.
func (l *Lists) problems() (out []problem.Problem) {
	add := func(s *list, format string, args ...any) {
		p := problem.New(problem.DenyList, s.field, format, args...)
		p.Object = problem.Weir
		out = append(out, p)
	}
	for i := range l.list {
		s := &l.list[i]
		kept := s.from.taken()
		switch {
		case s.err != nil && s.known:
			add(s, "%v: the last list goes on", s.err)
		case s.err != nil:
			add(s, "%v: the list is empty", s.err)
		case kept != nil:
			add(s, "deny list %s is not kept, a start without the API server would have an older one: %v", s.name, kept)
		}
	}
	return append(out, l.maps.problems()...)
}
