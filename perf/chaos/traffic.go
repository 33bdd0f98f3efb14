package chaos

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirlb/weir/perf/netlab/workload"
)

// traffic is the connections of a run.
type traffic struct {
	node   *node
	report *Report
	talks  []*talk
	fresh  fresh
}

// talk is a connection that lives for the whole run. Messages go there and back, and every
// byte of an answer is compared.
type talk struct {
	conn    net.Conn
	service *service
	six     bool
	said    atomic.Int64
	begun   atomic.Int64 // the exchange that is under way, Unix nanoseconds; 0: none
	failed  atomic.Bool
	longest time.Duration
}

// fresh are the connections that begin and end.
type fresh struct {
	sync.Mutex
	made    int
	longest time.Duration
}

func (n *node) newTraffic(ctx context.Context, r *Report) (*traffic, error) {
	t := &traffic{node: n, report: r}
	for i := range n.cfg.Connections {
		k := &talk{service: n.source.services[i%len(n.source.services)], six: i/len(n.source.services)%2 == 1}
		dialing, cancel := context.WithTimeout(ctx, exchangeWithin())
		var err error
		k.conn, err = n.Client.DialWith(dialing, dialer, "tcp", k.service.at(k.six).String())
		cancel()
		if err != nil {
			t.close()
			return nil, fmt.Errorf("before any fault: %w", err)
		}
		t.talks = append(t.talks, k)
	}
	return t, nil
}

func (t *traffic) close() {
	for _, k := range t.talks {
		_ = k.conn.Close()
	}
}

func (t *traffic) start(ctx context.Context, running *sync.WaitGroup) {
	for i, k := range t.talks {
		running.Go(func() { t.talk(ctx, i, k) })
	}
	const clients = 8
	for i := range clients {
		running.Go(func() { t.begin(ctx, i, clients) })
	}
}

// talk exchanges messages until ctx ends. A connection that failed is not made again.
func (t *traffic) talk(ctx context.Context, id int, k *talk) {
	for n := 0; ctx.Err() == nil; n++ {
		begun := time.Now()
		k.begun.Store(begun.UnixNano())
		message := strings.Repeat(fmt.Sprintf("connection %d message %d;", id, n), 1+n%100)
		err := workload.PingPong(k.conn, message, exchangeWithin())
		ended := time.Now()
		k.begun.Store(0)
		k.longest = max(k.longest, ended.Sub(begun))
		if err != nil {
			err = fmt.Errorf("%w (%s)", err, stateOf(k.conn))
			t.report.fail(failure{what: "established", kind: workload.Kind(err), service: k.service, six: k.six, begun: begun, ended: ended, err: err})
			k.failed.Store(true)
			return
		}
		t.judge(k, begun, ended)
		k.said.Add(1)
		pause(ctx, 200*time.Millisecond)
	}
}

// judge enters a failure if an exchange waited although no fault concerned it.
func (t *traffic) judge(k *talk, begun, ended time.Time) {
	most := mostWait()
	if most == 0 || ended.Sub(begun) <= most {
		return
	}
	if free := t.report.faults.free(k.service, begun, ended); free > most {
		err := fmt.Errorf("no fault concerned it for %v of this time", free.Round(time.Millisecond))
		t.report.fail(failure{what: "established", kind: "slow", service: k.service, six: k.six, begun: begun, ended: ended, err: err})
	}
}

// begin opens connections, exchanges a message over each, and closes them.
func (t *traffic) begin(ctx context.Context, from, clients int) {
	for i := from; ctx.Err() == nil; i += clients {
		s, six := t.node.source.services[i%len(t.node.source.services)], i/len(t.node.source.services)%2 == 1
		begun := time.Now()
		err := t.once(s, six, fmt.Sprintf("new connection %d", i))
		ended := time.Now()
		if err != nil {
			kind := workload.Kind(err)
			if kind == workload.KindTimeout {
				err = fmt.Errorf("%w (%s)", err, t.node.admin.halfOpen(s.at(six).String()))
			}
			t.report.fail(failure{what: "new", kind: kind, service: s, six: six, begun: begun, ended: ended, err: err})
		}
		t.fresh.Lock()
		t.fresh.made++
		t.fresh.longest = max(t.fresh.longest, ended.Sub(begun))
		t.fresh.Unlock()
		pause(ctx, time.Duration(clients)*time.Second/time.Duration(t.node.cfg.NewPerSecond))
	}
}

// once is not cut short by the end of the run, which would be a failure.
func (t *traffic) once(s *service, six bool, message string) error {
	ctx, cancel := context.WithTimeout(context.Background(), exchangeWithin())
	defer cancel()
	conn, err := t.node.Client.DialWith(ctx, dialer, "tcp", s.at(six).String())
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer conn.Close()
	return workload.PingPong(conn, message, exchangeWithin())
}

// goOn waits until every connection that has not failed has had n more exchanges.
func (t *traffic) goOn(ctx context.Context, n int64) error {
	deadline := time.Now().Add(2 * exchangeWithin())
	want := make([]int64, len(t.talks))
	for i, k := range t.talks {
		want[i] = k.said.Load() + n
	}
	for i, k := range t.talks {
		for k.said.Load() < want[i] && !k.failed.Load() {
			if time.Now().After(deadline) {
				return errors.New("connections neither go on nor fail")
			}
			if !pause(ctx, 10*time.Millisecond) {
				return context.Cause(ctx)
			}
		}
	}
	return nil
}

// finish enters the figures into the report.
func (t *traffic) finish() {
	r := t.report
	r.connections, r.fresh, r.longestFresh = len(t.talks), t.fresh.made, t.fresh.longest
	for _, k := range t.talks {
		r.exchanges += k.said.Load()
		r.longest = max(r.longest, k.longest)
	}
}

// pause reports whether the time has passed, and not ctx ended.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
