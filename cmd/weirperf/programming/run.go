package programming

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirlb/weir/perf/netlab"
)

const (
	// coldServices is the number of Services that must answer after a start.
	coldServices = 20
	// probedServices is the number of Services whose endpoints are replaced, in turn. A Service
	// whose last change has not arrived is passed over.
	probedServices = 200
	// leastGap and gapShare are the time between two connections after a change.
	leastGap, gapShare = time.Millisecond, 20
	// quiet is how long no connection must reach the old endpoint, at least.
	quiet = 100 * time.Millisecond
	// giveUp is after what time a change is counted as missed, and a cold start fails.
	giveUp = 5 * time.Minute
	// stopWithin is for a program that is told to end.
	stopWithin = time.Minute
	// connects is the number of connections of which the latency is measured.
	connects = 1000
)

// Result has the figures of a peer at a number of Services.
type Result struct {
	Peer             string    `json:"peer"`
	Services         int       `json:"services"`
	ColdStartSeconds float64   `json:"coldStartSeconds"`
	ToNew            Quantiles `json:"toNew"`
	ToOld            Quantiles `json:"toOld"`
	Connect          Quantiles `json:"connect"`
	// Missed counts changes of which a connection has not reached the new endpoint.
	Missed int `json:"missed,omitempty"`
	// Failed counts connections that reached no endpoint after a change.
	Failed int `json:"failed,omitempty"`
	// CPUSeconds is the CPU time of the program and of the programs that it runs (nft), with the
	// cold start, but for the kernel's work on packets.
	CPUSeconds float64 `json:"cpuSeconds"`
}

// bench runs peers in turn, in a cluster that grows.
type bench struct {
	o     options
	say   io.Writer
	began time.Time
}

func (b *bench) progress(format string, args ...any) {
	fmt.Fprintf(b.say, "%7s  %s\n", time.Since(b.began).Round(time.Second), fmt.Sprintf(format, args...))
}

func (b *bench) run(ctx context.Context) (results []Result, err error) {
	b.began = time.Now()
	if err := netlab.Available(); err != nil {
		return nil, err
	}
	c, err := startCluster(b.o.kubeenv)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	if err := c.makeNode(ctx); err != nil {
		return nil, err
	}
	for _, n := range b.o.services {
		b.progress("%d Services: making", n)
		if err := c.grow(ctx, n); err != nil {
			return results, fmt.Errorf("%d Services: %w", n, err)
		}
		for _, peer := range b.o.peers {
			b.progress("%d Services: %s", n, peer)
			r, err := b.turn(ctx, c, peer)
			if err != nil {
				return results, fmt.Errorf("%d Services: %s: %w", n, peer, err)
			}
			b.progress("  %s", r)
			results = append(results, *r)
		}
	}
	return results, nil
}

// turn runs a peer in a network of its own.
func (b *bench) turn(ctx context.Context, c *cluster, peer string) (_ *Result, err error) {
	s, err := newSite(c)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	started := time.Now()
	daemon, err := s.start(peer, &b.o, c)
	if err != nil {
		return nil, err
	}
	r := &Result{Peer: peer, Services: len(c.addrs)}
	if err := b.coldStart(ctx, s, c, daemon); err != nil {
		return nil, fmt.Errorf("cold start: %w; it said:\n%s", err, daemon.LogTail(15))
	}
	r.ColdStartSeconds = time.Since(started).Seconds()
	if err := b.connect(ctx, s, c, r); err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	if err := b.churn(ctx, s, c, r); err != nil {
		return nil, err
	}
	if err := daemon.Stop(stopWithin); err != nil {
		return nil, err
	}
	_ = daemon.Err() // kube-proxy ends by the signal
	r.CPUSeconds = (daemon.Cmd.ProcessState.UserTime() + daemon.Cmd.ProcessState.SystemTime()).Seconds()
	return r, nil
}

// spread is Service i of n that are spread over all, the last among them.
func (c *cluster) spread(i, n int) int { return len(c.addrs) - 1 - i%n*len(c.addrs)/n }

// coldStart waits until connections reach Services all over.
func (b *bench) coldStart(ctx context.Context, s *site, c *cluster, d *netlab.Daemon) error {
	ctx, cancel := context.WithTimeout(ctx, giveUp)
	defer cancel()
	for k := range coldServices {
		i := c.spread(k, coldServices)
		if err := d.Until(ctx, func(ctx context.Context) error {
			// A SYN that is lost would be sent again after a second.
			ctx, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
			defer cancel()
			got, err := s.reached(ctx, c.addrs[i])
			if want := endpoint(i, c.changed[i]); err == nil && got != want {
				err = fmt.Errorf("%s was reached, not %s", got, want)
			}
			return err
		}); err != nil {
			return err
		}
	}
	return nil
}

// connect measures connections to Services in turn.
func (b *bench) connect(ctx context.Context, s *site, c *cluster, r *Result) error {
	var took []time.Duration
	for k := range connects {
		begin := time.Now()
		if _, err := s.reached(ctx, c.addrs[c.spread(k, min(connects, len(c.addrs)))]); err != nil {
			return err
		}
		took = append(took, time.Since(begin))
	}
	r.Connect = quantilesOf(took)
	return nil
}

// churn replaces endpoints at the rate, and follows each change.
func (b *bench) churn(ctx context.Context, s *site, c *cluster, r *Result) error {
	n := min(probedServices, len(c.addrs))
	busy := make([]atomic.Bool, n)
	var mu sync.Mutex // guards the variables below
	var toNew, toOld []time.Duration
	var errs []error
	var wait sync.WaitGroup
	defer wait.Wait()
	tick := time.NewTicker(time.Duration(float64(time.Second) / b.o.rate))
	defer tick.Stop()
	next := 0
	for end := time.Now().Add(time.Duration(b.o.seconds * float64(time.Second))); time.Now().Before(end); {
		for k := 0; k < n && busy[next%n].Load(); k++ {
			next++
		}
		slot := next % n
		next++
		busy[slot].Store(true)
		wait.Go(func() {
			defer busy[slot].Store(false)
			f, err := s.follow(ctx, c, c.spread(slot, n))
			mu.Lock()
			defer mu.Unlock()
			r.Failed += f.failed
			switch {
			case err != nil:
				errs = append(errs, err)
			case f.toNew == 0:
				r.Missed++
			default:
				toNew, toOld = append(toNew, f.toNew), append(toOld, f.toOld)
			}
		})
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
	wait.Wait()
	r.ToNew, r.ToOld = quantilesOf(toNew), quantilesOf(toOld)
	return errors.Join(errs...)
}

// followed is the course of a change, as times since it; toNew is 0 if it has not arrived.
type followed struct {
	toNew, toOld time.Duration
	failed       int
}

// follow replaces the endpoint of Service i and opens connections until they reach the new
// endpoint alone.
func (s *site) follow(ctx context.Context, c *cluster, i int) (f followed, err error) {
	c.changed[i]++
	slice, fresh := c.slice(i), endpoint(i, c.changed[i])
	begin := time.Now()
	written := make(chan error, 1)
	go func() { written <- c.replace(ctx, slice, begin) }()
	defer func() {
		if writeErr := <-written; writeErr != nil {
			err = fmt.Errorf("write slice of %s: %w", serviceName(i), writeErr)
		}
	}()
	for time.Since(begin) < giveUp && ctx.Err() == nil {
		got, err := s.reached(ctx, c.addrs[i])
		now := time.Since(begin)
		switch {
		case err != nil:
			f.failed++
		case got != fresh:
			f.toOld = now
		case f.toNew == 0:
			f.toNew = now
		}
		if f.toNew != 0 && now-f.toOld > quiet+f.toNew/4 {
			break
		}
		time.Sleep(max(leastGap, now/gapShare))
	}
	return f, ctx.Err()
}
