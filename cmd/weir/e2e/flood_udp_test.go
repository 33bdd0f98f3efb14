package e2e

import (
	"context"
	"errors"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirlb/weir/perf/netlab/patience"
	"github.com/weirlb/weir/perf/netlab/workload"
)

// Numbers of TestWireUDPFlood, and the environment variables that replace them.
var (
	udpFloodSeconds = fromEnv("WEIR_UDPFLOOD_SECONDS", 5)
	udpFloodRate    = fromEnv("WEIR_UDPFLOOD_RATE", 2000) // datagrams a second
	udpFloodLost    = fromEnv("WEIR_UDPFLOOD_LOST", 20)   // percent of new flows that may have no answer
	udpFloodFlows   = fromEnv("WEIR_UDPFLOOD_FLOWS", 250)
)

// Datagrams from forged sources to a Service, in the default configuration: established flows of honest clients lose at
// most 1 % of their datagrams, none on a quiet machine, and most new ones are answered without asking twice: beside other
// tests the workers wait for a CPU, and the kernel drops what it cannot hand on.
func TestWireUDPFlood(t *testing.T) {
	f := ownFixture(t, options{services: []service{toAll}})
	bothFamilies(t, func(t *testing.T, six bool) {
		to := toAll.at(echoPort, six)
		ctx, stop := context.WithCancel(t.Context())
		var running sync.WaitGroup
		defer running.Wait()
		defer stop()
		flows := make([]*datagrams, udpFloodFlows)
		for i := range flows {
			c, err := f.Client.DialContext(inTime(t, within), "udp", to.String())
			must(t, err)
			defer c.Close()
			flows[i] = &datagrams{conn: c}
		}
		for i, d := range flows {
			running.Go(func() {
				pauseFor(ctx, datagramPause*time.Duration(i)/time.Duration(len(flows)))
				d.run(ctx)
			})
		}
		answered(t, flows, 5) // the kernel forwards them by then

		for _, d := range flows {
			d.sent.Store(0)
			d.lost.Store(0)
		}
		flood := newSYNFlood(t, f, to, float64(udpFloodRate)/patience.Factor()) // as much of the machine as of a quiet one
		flood.udp = true
		flooding, end := context.WithCancel(ctx)
		before, began := f.newFlows(t), time.Now()
		running.Go(func() { flood.run(flooding) })
		fresh := workload.StartProbe(f.Client, "udp", to, 10*time.Millisecond, patience.For(2*time.Second))
		pauseFor(ctx, time.Duration(udpFloodSeconds)*time.Second)
		report := fresh.End()
		took := time.Since(began)
		end()
		passed := f.newFlows(t) - before
		stop()
		running.Wait()

		must(t, flood.err)
		var sent, lost int64
		for _, d := range flows {
			must(t, d.err)
			sent, lost = sent+d.sent.Load(), lost+d.lost.Load()
		}
		t.Logf("%d forged datagrams, %.0f a second, made %d flows; %d flows sent %d datagrams and lost %d; %d new flows, %d lost",
			flood.sent.Load(), float64(flood.sent.Load())/took.Seconds(), passed, len(flows), sent, lost, report.Sent, report.Lost)
		if passed-int64(report.Sent) < flood.sent.Load()/2 {
			t.Errorf("%d datagrams made %d flows: the flood did not reach Weir", flood.sent.Load(), passed)
		}
		if lost*100 > sent {
			t.Errorf("%d of %d datagrams of established flows are lost; %s", lost, sent, f.whatWasDropped())
		}
		if report.Lost*100 > report.Sent*udpFloodLost {
			t.Errorf("%d of %d new flows have no answer; %s", report.Lost, report.Sent, f.whatWasDropped())
		}
	})
}

// datagrams are a flow of an honest client that sends a datagram every datagramPause, and waits for the answer.
type datagrams struct {
	conn       net.Conn
	sent, lost atomic.Int64
	err        error
}

const datagramPause = 250 * time.Millisecond

func (d *datagrams) run(ctx context.Context) {
	buf := make([]byte, 64)
	for ctx.Err() == nil && d.err == nil {
		if _, d.err = d.conn.Write([]byte("honest")); d.err != nil {
			return
		}
		d.sent.Add(1)
		_ = d.conn.SetReadDeadline(time.Now().Add(patience.For(2 * time.Second)))
		if _, err := d.conn.Read(buf); errors.Is(err, os.ErrDeadlineExceeded) {
			d.lost.Add(1)
		} else {
			d.err = err
		}
		pauseFor(ctx, datagramPause)
	}
}

// answered waits until every flow has had n answers.
func answered(t *testing.T, flows []*datagrams, n int64) {
	t.Helper()
	deadline := time.Now().Add(within)
	for _, d := range flows {
		for d.sent.Load()-d.lost.Load() < n+1 {
			if time.Now().After(deadline) {
				t.Fatal("an honest flow has no answers")
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
}
