package gateways

import (
	"testing"
	"time"
)

// An object that cannot be written is tried ever more slowly, and others that fail once are not.
func TestRetriesOfAnObjectDelayNoOther(t *testing.T) {
	r, now := newRetries(), time.Unix(1, 0)
	for range 20 {
		if !r.due("Service a/bad", now) {
			t.Fatal("not tried after the wait")
		}
		r.note("Service a/bad", true, now)
		wait, more := r.next(now)
		if !more || wait > lastRetry {
			t.Fatalf("wait %s, %t", wait, more)
		}
		now = now.Add(wait)
	}
	r.due("Service a/bad", now)
	r.note("Service a/bad", true, now)
	if r.due("Service a/bad", now.Add(lastRetry/2)) {
		t.Error("a change of another object has the one that fails tried at once")
	}
	if !r.due("Service a/good", now) {
		t.Error("another object waits")
	}
	r.note("Service a/good", true, now)
	if wait, _ := r.next(now); wait != firstRetry {
		t.Errorf("another object waits %s, want %s", wait, firstRetry)
	}
	r.due("Service a/good", now.Add(firstRetry))
	r.note("Service a/good", false, now.Add(firstRetry))
	if wait, more := r.next(now); more {
		t.Errorf("waits %s for objects that are written, or need no write any more", wait)
	}
	if !r.due("Service a/bad", now) {
		t.Error("the waits of an object that needed no write count")
	}
}
