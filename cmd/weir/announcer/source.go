package announcer

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"k8s.io/client-go/rest"

	"github.com/weirlb/weir/cmd/weir/config"
	"github.com/weirlb/weir/cmd/weir/event"
	"github.com/weirlb/weir/cmd/weir/problem"
	"github.com/weirlb/weir/cmd/weir/source"
	"github.com/weirlb/weir/discovery/kube"
)

// Times of the objects of the API server.
const (
	// definitionsEvery is how often definitions are looked for that were installed later.
	definitionsEvery = time.Minute
	// objectsSettle is how long no object may change before all are taken over: a file of several
	// is applied one by one.
	objectsSettle = 300 * time.Millisecond
	// objectsAtMost is how long changes are waited for that go on.
	objectsAtMost = 3 * time.Second
	// labelsEvery is how often the labels of the node are looked at.
	labelsEvery = time.Second
)

// objectSource has the objects of the API server for the announcement.
type objectSource struct {
	*kube.PoolObjects
	server  string
	changed chan struct{}
	// labels are those of the node, nil while they are not known.
	labels func() map[string]string
	kept   objectKeeper
	began  time.Time
	known  atomic.Bool // objects of the API server, of now or kept
	partly bool        // some of those taken over are of an earlier process
}

// newObjectSource makes the source of announce.objectNamespaces; nil without any.
func newObjectSource(cfg *config.Configuration, services source.Source, log *slog.Logger) (*objectSource, error) {
	a := &cfg.Announce
	if len(a.WatchedNamespaces()) == 0 {
		return nil, nil
	}
	kc, err := source.ClusterConfig(cfg)
	if err != nil {
		return nil, err
	}
	s := &objectSource{server: kc.REST.Host, changed: make(chan struct{}, 1), began: time.Now(), kept: newObjectKeeper(cfg, source.Identity(&kc))}
	if n, ok := services.(interface{ NodeLabels() map[string]string }); ok {
		s.labels = n.NodeLabels
	}
	s.PoolObjects, err = kube.NewPoolObjects(poolConfig(a, kc.REST, s.wake, log))
	return s, err
}

// poolConfig selects the objects.
func poolConfig(a *config.Announce, rc *rest.Config, changed func(), log *slog.Logger) kube.PoolConfig {
	return kube.PoolConfig{REST: rc, Namespaces: a.WatchedNamespaces(), Secrets: a.ObjectSecrets, Changed: changed, Log: log}
}

func (s *objectSource) wake() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// watch looks for definitions until ctx ends, with growing pauses while the API server is away.
func (s *objectSource) watch(ctx context.Context, log *slog.Logger) {
	pause := time.Second
	for {
		err := s.Look(ctx)
		wait := definitionsEvery
		if err != nil {
			log.Debug("announce: definitions of objects", "err", err)
			wait, pause = pause, min(2*pause, definitionsEvery)
		} else {
			pause = time.Second
		}
		s.wake()
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait + rand.N(wait/4)): // not all nodes at once
		}
	}
}

// settled waits for a change and its end, and is false at the end of ctx.
func (s *objectSource) settled(ctx context.Context) bool {
	look := time.NewTimer(labelsEvery)
	defer look.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-look.C:
		return true
	case <-s.changed:
	}
	for deadline := time.After(objectsAtMost); ; {
		select {
		case <-ctx.Done():
			return false
		case <-s.changed:
		case <-time.After(objectsSettle):
			return true
		case <-deadline:
			return true
		}
	}
}

// followObjects takes over the objects of the API server as they change.
func (a *Announcer) followObjects(ctx context.Context) {
	s := a.source
	ended := make(chan struct{})
	go func() { defer close(ended); s.watch(ctx, a.log) }()
	defer func() { <-ended }()
	for s.settled(ctx) {
		if text := a.takeListed(); text != "" {
			a.log.Info("announce: objects of the API server", "taken", text)
			taken, _, _ := strings.Cut(text, notTakenOver)
			a.events.Add(event.New{Kind: event.Objects, Identity: fmt.Sprint(taken == text), Text: text, Logged: true})
		}
	}
}

// startObjects gives the announcer the source of objects, and those that are kept of an earlier
// process. Preconditions: nothing is announced yet.
func (a *Announcer) startObjects(s *objectSource, log *slog.Logger) {
	if a == nil || s == nil {
		return
	}
	a.changing.Lock()
	defer a.changing.Unlock()
	a.source, a.input.secret = s, s.Secret
	s.kept.load(&a.input, a.cfg.Discovery.Kubernetes.LastKnownMaxAge(), log)
	if a.input.kept {
		s.known.Store(true)
		a.take()
	}
}

const notTakenOver = "; not taken over: "

// takeListed takes over objects, Secrets and labels that have changed, and says so, "" without a
// change. Before all objects are listed nothing is taken: those of before stay. Those of an earlier
// process that may not be listed stay too: an API server that has just started refuses everything.
func (a *Announcer) takeListed() (text string) {
	s := a.source
	if !s.Synced() {
		return ""
	}
	listed, err := s.Objects()
	if err != nil {
		return ""
	}
	a.changing.Lock()
	defer a.changing.Unlock()
	defer a.keepListed()
	labels := a.input.labels
	if s.labels != nil {
		if now := s.labels(); now != nil { // a Node that is gone keeps them
			labels = now
		}
	}
	earlier := slices.DeleteFunc(slices.Clone(a.input.listed), func(o kube.PoolObject) bool { return !s.Refused(&o) })
	listed = append(listed, earlier...)
	slices.SortFunc(listed, func(x, y kube.PoolObject) int { return bytes.Compare(x.JSON, y.JSON) })
	keys := s.SecretVersions()
	if a.input.synced && s.partly == (len(earlier) > 0) && a.input.secrets == keys && maps.Equal(labels, a.input.labels) && slices.EqualFunc(listed, a.input.listed, func(x, y kube.PoolObject) bool {
		return bytes.Equal(x.JSON, y.JSON)
	}) {
		return ""
	}
	a.input.listed, a.input.labels, a.input.secrets, a.input.synced, a.input.kept = listed, labels, keys, true, false
	s.partly = len(earlier) > 0
	s.known.Store(true)
	refused := a.take()
	s.kept.asked = refused == "" && !s.partly // a start would leave out objects with faults
	text = fmt.Sprintf("%d objects were read: %s are for this node", len(listed), a.objects.counts())
	if refused != "" {
		text += notTakenOver + refused
	}
	return text
}

// keepListed keeps the objects for the next start. Preconditions: a.changing is held.
func (a *Announcer) keepListed() {
	if s := a.source; s.kept.due(a.objects.refused == "" && len(s.Faults()) == 0) {
		err := s.kept.save(&a.input)
		a.mu.Lock()
		defer a.mu.Unlock()
		a.unkept = err
	}
}

// waits reports whether objects of the API server are not known yet, for a bounded time.
func (a *Announcer) waits() bool {
	return a != nil && a.source != nil && !a.source.known.Load() && time.Since(a.source.began) < holdWithoutView
}

// problems are resources that cannot be watched.
func (s *objectSource) problems() (out []problem.Problem) {
	if s == nil {
		return nil
	}
	for _, f := range s.Faults() {
		out = append(out, problem.Problem{
			Kind: problem.APIServer, Object: "API server " + s.server, Field: f.Resource, Since: f.Since, Logged: true,
			Reason: "cannot be watched for the announcement, what is known stays: " + f.Reason,
		})
	}
	return out
}
