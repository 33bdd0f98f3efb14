package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"
)

// Time that an answer may take. A reader that is stuck is given up after
// readerStall, a slow one after answerTime.
const (
	readerStall = 10 * time.Second
	answerTime  = time.Minute
)

// heavy admits a single answer of a kind at a time: the process that answers moves
// packets too.
type heavy struct {
	kind  string // for the error
	stall time.Duration
	busy  sync.Mutex
}

// admit reports whether the request may be answered, and refuses it if not.
// The caller calls leave after a true.
func (h *heavy) admit(w http.ResponseWriter) bool {
	if h.busy.TryLock() {
		return true
	}
	w.Header().Set("Retry-After", "1")
	refuse(w, http.StatusServiceUnavailable, fmt.Errorf("another request for %s is being answered: try again", h.kind))
	return false
}

func (h *heavy) leave() { h.busy.Unlock() }

// stream answers with a Stream. A fault in the middle breaks the connection, so
// that the client does not take a part for the whole.
func (h *heavy) stream(w http.ResponseWriter, r *http.Request, s Stream, err error) {
	if err != nil {
		reply(w, nil, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	o := NewObjectWriter(w, false)
	o.before = deadlines(r.Context(), http.NewResponseController(w), h.stall)
	if err := errors.Join(s(o), o.Close()); err != nil {
		panic(http.ErrAbortHandler)
	}
}

// deadlines returns a function that is to be called before each write: it
// gives the reader stall more time, up to answerTime in all.
func deadlines(ctx context.Context, c *http.ResponseController, stall time.Duration) func() error {
	end := time.Now().Add(answerTime)
	return func() error {
		at := time.Now().Add(stall)
		if at.After(end) {
			at = end
		}
		if err := c.SetWriteDeadline(at); err != nil && !errors.Is(err, http.ErrNotSupported) {
			return err
		}
		return ctx.Err()
	}
}
