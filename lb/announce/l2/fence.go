package l2

import (
	"sync/atomic"
	"time"
)

const (
	// fenceAfter is how long a process that does not run keeps its addresses: not longer than others
	// may need to take them. After a longer pause it does not answer for fencePause, in which it
	// reads what the others have said.
	fenceAfter = probeEvery * (2 + suspicion)
	fencePause = 150 * time.Millisecond
)

// fence keeps a process from answering that did not run.
type fence struct {
	start       time.Time
	ran, resume atomic.Int64 // when the loop of the link ran, and from when it answers, in ns since start
}

// pass notes that the loop runs. gap is how long it did not, if others may have taken the addresses since:
// nothing is answered for a while then.
func (f *fence) pass() (gap time.Duration) {
	now := f.now()
	before := f.ran.Swap(now)
	if gap = time.Duration(now - before); before == 0 || gap <= fenceAfter {
		return 0
	}
	f.resume.Store(now + int64(fencePause))
	return gap
}

// open reports whether the addresses are this node's now.
func (f *fence) open() bool {
	now := f.now()
	return now-f.ran.Load() < int64(fenceAfter) && now >= f.resume.Load()
}

// due reports whether the loop has not run since the last probe.
func (f *fence) due() bool { return f.now()-f.ran.Load() > int64(probeEvery*4/5) }

func (f *fence) now() int64 { return int64(time.Since(f.start)) }
