package worker

import (
	"sync"
	"time"
)

// question is a function for a worker to call between two rounds: some of the state is the
// worker's alone.
type question struct {
	f    func(*Worker)
	done chan struct{}
}

// askTimeout is how long a worker may take to answer. It is woken up for it.
const askTimeout = time.Second

// asking has questions to all workers wait for each other: there are few.
var asking sync.Mutex

// ask has the worker call f between two rounds, and waits until that is done. It reports
// whether f was called. A worker that has not started calls nothing: its owner, which drives
// it, is the caller.
func ask(w *Worker, f func(*Worker)) bool {
	if w.thread.Load() == 0 {
		f(w)
		return true
	}
	asking.Lock()
	defer asking.Unlock()
	q := &question{f, make(chan struct{})}
	w.question.Store(q)
	w.sleeper.wakeUp()
	select {
	case <-q.done:
		return true
	case <-time.After(askTimeout):
	}
	if w.question.CompareAndSwap(q, nil) {
		return false
	}
	<-q.done // it is being answered
	return true
}

// answer answers the question that the worker is asked, unless the asker has given up.
// Preconditions: no packet is in a batch.
func (q *question) answer(w *Worker) {
	if w.question.CompareAndSwap(q, nil) {
		q.f(w)
		close(q.done)
	}
}
