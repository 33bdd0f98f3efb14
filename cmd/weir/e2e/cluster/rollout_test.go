package cluster

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/weirlb/weir/discovery/kube/kubetest"
	"github.com/weirlb/weir/perf/netlab/workload"
)

// Of a rolling replacement.
const (
	rolloutPods  = 20
	rolloutBatch = 4 // maxSurge
	// preStop is how long a Pod that terminates goes on to accept, as a
	// preStop hook of "sleep 1" makes it.
	preStop = time.Second
	perSec  = 1000
)

// Twenty Pods are replaced, a few at a time, under a thousand new connections
// per second: every one of them is answered.
func TestKubeWireRollingReplacementLosesNoConnection(t *testing.T) {
	f := newFixture(t, kubetest.Options{NoEndpoints: true})
	nodes := []string{"node-a", "node-b"}
	var old []*pod
	for i := range rolloutPods {
		old = append(old, f.runPod(fmt.Sprintf("old-%d", i), nodes[i%2], "web", uint8(20+i)))
	}
	target := f.web("web")
	f.start()
	f.reaches("before", target, names(old)...)

	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	record := &workload.Record{}
	done := make(chan error, 1)
	start := time.Now()
	go func() { done <- f.steady(ctx, f.load(target), record) }()
	var fresh []*pod
	for i := 0; i < rolloutPods; i += rolloutBatch {
		for j := i; j < i+rolloutBatch; j++ {
			fresh = append(fresh, f.runPod(fmt.Sprintf("new-%d", j), nodes[j%2], "web", uint8(100+j)))
		}
		for _, p := range old[i : i+rolloutBatch] {
			f.Terminate(p.name)
		}
		time.Sleep(preStop) // of the Pods, not of the test
		for _, p := range old[i : i+rolloutBatch] {
			if err := p.server.Refuse(); err != nil {
				t.Fatal(err)
			}
			f.Remove(p.name)
		}
	}
	took := time.Since(start)
	cancel()
	err := errors.Join(<-done, record.Err())
	t.Logf("%d connections in %.1f s (%.0f per second), %d answered by new Pods; p50 %v p99 %v", record.Requests(), took.Seconds(),
		float64(record.Requests())/took.Seconds(), fromNew(record), record.Percentile(50), record.Percentile(99))
	if err != nil {
		t.Errorf("connections were lost: %v", err)
	}
	f.reaches("after", target, names(fresh)...)
}

// steady makes perSec connections per second, by the clock: one that waits
// does not hold up the others, as long as not all clients wait.
func (f *fixture) steady(ctx context.Context, l *workload.Load, record *workload.Record) error {
	due := make(chan struct{}, perSec) // a second's arrears at most
	go func() {
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for begun, sent := time.Now(), 0; ctx.Err() == nil; <-tick.C {
			for now := int(time.Since(begun).Seconds() * perSec); sent < now; sent++ {
				select {
				case due <- struct{}{}:
				default:
				}
			}
		}
	}()
	l.Concurrency = 100
	l.Record = func() *workload.Record {
		select {
		case <-due:
		case <-ctx.Done():
		}
		return record
	}
	_, err := l.Run(ctx)
	return err
}

func names(pods []*pod) []string {
	var out []string
	for _, p := range pods {
		out = append(out, p.name)
	}
	return out
}

func fromNew(r *workload.Record) int {
	n := 0
	for name, answers := range r.Servers() {
		if name[:3] == "new" {
			n += answers
		}
	}
	return n
}
