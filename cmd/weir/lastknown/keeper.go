package lastknown

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/weirlb/weir/discovery/kube/cluster"
	"github.com/weirlb/weir/discovery/names"
)

// Keeper saves a state after it has changed, and at the end. A cluster that
// changes all the time is saved at growing intervals: the file is for the next
// start, and edge nodes often write to flash memory.
type Keeper struct {
	Path    string
	Cluster string
	// Objects is the state now, nil while it is not known.
	Objects func() *cluster.Objects
	// GoodAt is when that was last known to be the state of the cluster, zero
	// for unknown. Nil: always now.
	GoodAt func() time.Time
	// Delay is the time from a change to the save (default 5 s), and Intervals are the
	// least times between saves while the state goes on changing, or cannot be saved
	// (default 1 min, then 10 min). After the last interval without an attempt to save, the
	// next change is saved after Delay again.
	Delay     time.Duration
	Intervals []time.Duration
	// Budget bounds what is written while the state goes on changing, in bytes per day
	// (default 1 GiB): the larger the file, the longer the time between saves.
	Budget int64
	// Confirm is how often the file notes that the state is still that of the
	// cluster (default 10 min).
	Confirm time.Duration
	Log     *slog.Logger

	// write writes the state, unless it is not known.
	write func(at time.Time) (sum []byte, size int64, known bool, err error)
	// lacking is what a write that fails means.
	lacking string
	// whole is true if the file itself has the times of what is in it, so that it is written anew for these.
	whole bool

	changed chan struct{}
	step    int       // of Intervals
	tried   time.Time // to save, zero for never
	sum     []byte    // of the file, nil before it is saved
	stale   time.Time // since when the file is older than the state, zero while it is not
	size    int64     // of the last save

	mu      sync.Mutex
	err     error // of the last save
	seenErr error // of the last confirmation
	saved   time.Time
	good    time.Time // when the state in the file was last known to be the cluster's
}

// NewKeeper makes a Keeper that does nothing before Run.
func NewKeeper(path, cluster string, objects func() *cluster.Objects, log *slog.Logger) *Keeper {
	k := idleKeeper(path, log)
	k.Cluster, k.Objects = cluster, objects
	k.lacking = "the last known state is not kept: a start without the API server would serve an older one"
	k.write = func(at time.Time) (sum []byte, size int64, known bool, err error) {
		o := k.Objects()
		if o == nil {
			return nil, 0, false, nil
		}
		sum, size, err = save(k.Path, k.Cluster, at, o)
		return sum, size, true, err
	}
	return k
}

// NewNamesKeeper makes a Keeper of answers of the DNS that does nothing before Run. Without an answer there is
// no file.
func NewNamesKeeper(path string, answers func() []names.Kept, log *slog.Logger) *Keeper {
	k := idleKeeper(path, log)
	k.whole, k.lacking = true, "answers of the DNS are not kept: a start without a resolver would have older endpoints"
	k.write = func(at time.Time) (sum []byte, size int64, known bool, err error) {
		list := answers()
		if len(list) == 0 && k.size == 0 {
			return nil, 0, false, nil
		}
		size, err = SaveNames(path, at, list)
		return nil, size, true, err
	}
	return k
}

func idleKeeper(path string, log *slog.Logger) *Keeper {
	return &Keeper{
		Path: path, Log: log, Budget: 1 << 30,
		Delay: 5 * time.Second, Intervals: []time.Duration{time.Minute, 10 * time.Minute}, Confirm: 10 * time.Minute,
		changed: make(chan struct{}, 1),
	}
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
	confirm := time.NewTicker(k.Confirm)
	defer confirm.Stop()
	var due <-chan time.Time // nil: nothing is to be saved
	for {
		select {
		case <-ctx.Done():
			if k.takeChange() || due != nil || k.whole {
				k.save()
			}
			k.confirm()
			return
		case <-k.changed:
			k.noteChange()
			if due == nil {
				due = time.After(k.wait())
			}
		case <-due:
			due = nil
			if !k.save() {
				due = time.After(k.wait())
			}
		case <-confirm.C:
			if k.confirm(); k.whole {
				k.Changed()
			}
		}
	}
}

// takeChange reports whether the state has changed.
func (k *Keeper) takeChange() bool {
	select {
	case <-k.changed:
		k.noteChange()
		return true
	default:
		return false
	}
}

// noteChange notes since when the file is older than the state.
func (k *Keeper) noteChange() {
	if k.stale.IsZero() {
		k.stale = time.Now()
	}
}

// affordable is the time between two saves that use up the budget.
func (k *Keeper) affordable() time.Duration {
	if k.Budget <= 0 {
		return 0
	}
	return time.Duration(float64(k.size) / float64(k.Budget) * float64(24*time.Hour))
}

// wait is how long the next save is to wait.
func (k *Keeper) wait() time.Duration {
	since := time.Since(k.tried)
	affordable := k.affordable()
	if len(k.Intervals) == 0 || since >= max(affordable, k.Intervals[len(k.Intervals)-1]) {
		k.step = 0
		return k.Delay
	}
	interval := max(affordable, k.Intervals[min(k.step, len(k.Intervals)-1)])
	k.step++
	return max(k.Delay, interval-since)
}

// save writes the state, and reports false where it could not.
func (k *Keeper) save() (ok bool) {
	start := time.Now()
	at := k.goodAt(start)
	sum, size, known, err := k.write(at)
	if !known {
		return true
	}
	k.tried = start
	k.mu.Lock()
	defer k.mu.Unlock()
	if err == nil {
		k.sum, k.saved, k.stale, k.size, k.good = sum, start, time.Time{}, size, at
	}
	k.note(&k.err, err)
	return err == nil
}

// confirm notes when the saved state was last known to be the cluster's: no later than the
// first change since.
func (k *Keeper) confirm() {
	at := k.goodAt(time.Now())
	if !k.stale.IsZero() && k.stale.Before(at) {
		at = k.stale
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.sum == nil || at.IsZero() {
		return
	}
	err := writeSeen(k.Path, k.sum, at)
	if err == nil {
		k.good = at
	}
	k.note(&k.seenErr, err)
}

// goodAt is GoodAt, or now where that is not known.
func (k *Keeper) goodAt(now time.Time) time.Time {
	if k.GoodAt == nil {
		return now
	}
	return k.GoodAt()
}

// note keeps the outcome of a write in last and logs errors that are new.
// Preconditions: k.mu is held.
func (k *Keeper) note(last *error, err error) {
	if err != nil && (*last == nil || (*last).Error() != err.Error()) {
		k.Log.Error(k.lacking, "err", err)
	}
	*last = err
}

// Err is why the last attempt to save or to confirm failed, nil when neither did.
func (k *Keeper) Err() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return cmp.Or(k.err, k.seenErr)
}

// File returns the size of the saved state in bytes, and when it was last known to be that of the
// cluster; zero before this process has saved.
func (k *Keeper) File() (size int64, good time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.size, k.good
}

// Saved is when the state was last saved by this process, zero for never.
func (k *Keeper) Saved() time.Time {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.saved
}
