package state

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/weirlb/weir/discovery/kube"
)

// Keeper saves a state some time after it changed, and at the end.
type Keeper struct {
	Path    string
	Cluster string
	// Objects is the state now, nil while it is not known.
	Objects func() *kube.Objects
	// Delay is how long after a change it is saved (default 5 s). A large
	// state is saved less often: never more than a fiftieth of the time is
	// spent with it.
	Delay time.Duration
	Log   *slog.Logger

	changed chan struct{}

	mu    sync.Mutex
	err   error
	saved time.Time
}

// share of the time that may go into saving.
const share = 50

// NewKeeper makes a Keeper that does nothing before Run.
func NewKeeper(path, cluster string, objects func() *kube.Objects, log *slog.Logger) *Keeper {
	return &Keeper{Path: path, Cluster: cluster, Objects: objects, Delay: 5 * time.Second, Log: log, changed: make(chan struct{}, 1)}
}

// Changed says that the state has changed. It does not wait.
func (k *Keeper) Changed() {
	select {
	case k.changed <- struct{}{}:
	default:
	}
}

// Run saves until ctx ends, and then once more if something is not saved yet.
func (k *Keeper) Run(ctx context.Context) {
	delay := k.Delay
	for {
		select {
		case <-ctx.Done():
			select {
			case <-k.changed:
				k.save()
			default:
			}
			return
		case <-k.changed:
		}
		select {
		case <-ctx.Done():
			k.save()
			return
		case <-time.After(delay):
		}
		// What changed until now is saved with it.
		select {
		case <-k.changed:
		default:
		}
		delay = max(k.Delay, share*k.save())
	}
}

// save returns how long it took.
func (k *Keeper) save() time.Duration {
	o := k.Objects()
	if o == nil {
		return 0
	}
	start := time.Now()
	err := Save(k.Path, k.Cluster, start, o)
	k.mu.Lock()
	defer k.mu.Unlock()
	if err != nil && (k.err == nil || k.err.Error() != err.Error()) {
		k.Log.Error("the last known state is not kept: a start without the API server would serve an older one", "err", err)
	}
	if k.err = err; err == nil {
		k.saved = start
	}
	return time.Since(start)
}

// Err is why the last attempt to save failed, nil when it did not.
func (k *Keeper) Err() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.err
}

// Saved is when the state was last saved by this process, zero for never.
func (k *Keeper) Saved() time.Time {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.saved
}
