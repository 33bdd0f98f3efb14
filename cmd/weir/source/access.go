package source

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/weirlb/weir/cmd/weir/problem"
	"github.com/weirlb/weir/discovery/kube"
)

// askAccess refuses to start if the API server denies a needed permission and there is
// nothing else to serve: a Weir that waits forever does not help. A
// server that cannot be asked is waited for.
func askAccess(ctx context.Context, kc kube.Config, log *slog.Logger) error {
	denials, err := kube.Access(ctx, kc)
	if errors.Is(err, kube.ErrCredentials) {
		return err
	}
	if err != nil {
		log.Warn("cannot ask the API server for permissions", "err", err)
		return nil
	}
	var denied []error
	for _, d := range denials {
		if d.Optional {
			log.Warn(d.Error())
			continue
		}
		denied = append(denied, d)
	}
	return errors.Join(denied...)
}

// access asks for permissions while the last known state is served: a denied permission is
// an error in the status, and is asked for again until granted.
type access struct {
	cfg kube.Config
	log *slog.Logger

	mu     sync.Mutex
	denied []string
}

// askAgain is how often permissions that were denied are asked for again.
const askAgain = 30 * time.Second

func (a *access) run(ctx context.Context) {
	for {
		err := askAccess(ctx, a.cfg, a.log)
		if ctx.Err() != nil {
			return
		}
		if a.set(err); err == nil {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(askAgain):
		}
	}
}

// set keeps the denied permissions, and logs new ones.
func (a *access) set(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	before := a.denied
	a.denied = nil
	if err == nil {
		return
	}
	for _, e := range problem.Flatten(err) {
		a.denied = append(a.denied, e.Error())
	}
	if len(before) == 0 {
		for _, text := range a.denied {
			a.log.Error("what is known stays", "err", text)
		}
	}
}

// faults are the permissions denied now.
func (a *access) faults() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.denied
}

// TooOld refuses a last known state whose addresses may by now be those of other
// Pods. A limit of 0 is none. A clock that is before the state, as of a machine without a
// battery, says nothing about the state's age.
func TooOld(at time.Time, limit time.Duration) error {
	if age := time.Since(at); limit > 0 && age > limit {
		return fmt.Errorf("last known state: of %s, which is %s ago and more than discovery.kubernetes.lastKnownMaxAgeHours allows (%s)",
			at.Format(time.RFC3339), age.Round(time.Minute), limit)
	}
	return nil
}
