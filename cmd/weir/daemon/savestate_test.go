package daemon

import (
	"bufio"
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/weirlb/weir/cmd/weir/config"
	"github.com/weirlb/weir/cmd/weir/event"
	"github.com/weirlb/weir/cmd/weir/sdnotify"
	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb"
)

// savedSource is a source with a last known state.
type savedSource struct {
	Source
	saved bool
}

func (s *savedSource) save(context.Context) { s.saved = true }

// The next process reads the last known state after the hello: without an API server it would serve
// a state that is older than that of the running process.
func TestTheStateIsSavedForTheNextProcess(t *testing.T) {
	own, other := socketPair(t)
	log := slog.New(slog.DiscardHandler)
	notify, err := sdnotify.New(nil, log)
	if err != nil {
		t.Fatal(err)
	}
	s := &savedSource{}
	d := &Daemon{cfg: config.Default(), log: log, source: s, lb: &lb.LB{}, notify: notify, events: event.NewRing(log), synced: true}
	next := newPeer(other)
	if err := next.say(handoverMessage{Say: sayHello, Layout: conntrack.LayoutVersion()}); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- d.meetNext(t.Context(), newPeer(own)) }()
	_ = other.SetReadDeadline(time.Now().Add(greetTime))
	if line, err := bufio.NewReader(other).ReadString('\n'); err != nil || !strings.Contains(line, sayHello) {
		t.Fatalf("%q, %v", line, err)
	}
	_ = other.Close()
	if err := <-done; err == nil {
		t.Error("the handover goes on")
	}
	if !s.saved {
		t.Error("the state is not saved")
	}
}
