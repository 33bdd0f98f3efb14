package packet

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/perf/netlab/labtest"
)

// tracer traces each frame of the table before the frame is sent, and compares the trace with
// what then becomes of the frame.
type tracer struct {
	l        *lab
	mu       sync.Mutex
	handled  []*api.Packet // that Weir has handled since the last frame
	arrived  chan struct{} // something was added
	compared map[string]int
	marks    int
	fault    error
}

// traced is how many frames are compared, and the seed of their choice: TRACES with TRACE_SEED or
// any seed, or as many as take some seconds, always the same.
func traced(t *testing.T) (frames int, seed uint64) {
	t.Helper()
	frames, seed = 100, 1
	if text := os.Getenv("TRACES"); text != "" {
		n, err := strconv.Atoi(text)
		must(t, err)
		frames, seed = n, rand.Uint64()
	}
	if text := os.Getenv("TRACE_SEED"); text != "" {
		n, err := strconv.ParseUint(text, 10, 64)
		must(t, err)
		seed = n
	}
	return frames, seed
}

// limited are reasons that depend on how many packets came lately: a trace counts limits of
// answers as unused.
var limited = []string{"reply-rate-limited", "echo-rate-limited"}

// byChance are rules by which equally good endpoints are chosen at random.
var byChance = []string{"random", "least connections"}

// mark ends the payload of a packet that follows a frame. When Weir has handled it, Weir has
// handled the frame.
const mark = " after a traced frame"

// hostVeth is the end of the host veth that Weir receives from.
const hostVeth = "weir-xdp"

// follow notes the packets that Weir handles, until the returned function is called.
func (r *tracer) follow() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		err := r.l.admin.Live(ctx, &api.PacketQuery{Packets: api.MaxPackets, Time: time.Hour, Rate: 1 << 20}, func(v *api.Live) error {
			r.mu.Lock()
			defer r.mu.Unlock()
			if v.Lost+v.Skipped > 0 {
				return fmt.Errorf("%d packets lost, %d skipped", v.Lost, v.Skipped)
			}
			if v.Packet != nil {
				r.handled = append(r.handled, v.Packet)
			}
			select {
			case r.arrived <- struct{}{}:
			default:
			}
			return nil
		})
		r.mu.Lock()
		defer r.mu.Unlock()
		if ctx.Err() == nil && err == nil {
			err = fmt.Errorf("the list of handled packets has ended")
		}
		r.fault = err
	}()
	return func() { cancel(); <-done }
}

// begin waits until the list of handled packets has begun.
func (r *tracer) begin(t testing.TB) {
	t.Helper()
	frame := r.mark(t)
	for end := time.After(within); ; {
		must(t, r.l.client.tap.Send(frame))
		select {
		case <-r.arrived:
			return
		case <-time.After(50 * time.Millisecond):
		case <-end:
			r.mu.Lock()
			defer r.mu.Unlock()
			t.Fatalf("handled packets are not listed: %v", r.fault)
		}
	}
}

// markClient sends the marks.
var markClient = netip.AddrPortFrom(sentinelClient.Addr(), 2)

// mark returns a packet whose handling shows that all before it are handled. It has another
// length than the marks before.
func (r *tracer) mark(t testing.TB) []byte {
	t.Helper()
	r.marks++
	payload := append(make([]byte, r.marks%1000), mark...)
	return packet{srcMAC: clientMAC, dstMAC: edge0MAC, src: markClient, dst: r.l.sentinels[0].frontend(), ttl: 64, payload: payload}.bytes(t)
}

// send traces a frame, sends it, and compares.
func (r *tracer) send(t testing.TB, at *station, frame []byte) {
	t.Helper()
	in := map[*station]string{r.l.client: "eth0", r.l.fabric: "eth1"}[at]
	if in == "" || bytes.HasPrefix(frame[min(42, len(frame)):], []byte("sentinel ")) {
		must(t, at.tap.Send(frame))
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	said, err := r.l.admin.Trace(ctx, &api.TraceQuery{Frame: frame, Interface: in})
	if err != nil && !strings.Contains(err.Error(), "longer than a frame of the packet memory") && !strings.Contains(err.Error(), "with an IP packet") {
		t.Fatalf("trace: %v\n%s", err, summary(frame))
	}
	r.mu.Lock()
	r.handled = nil
	r.mu.Unlock()
	must(t, at.tap.Send(frame))
	was := r.outcome(t)
	if said == nil {
		return
	}
	// A packet that the kernel forwards may come once more, by the host veth.
	same := func(p *api.Packet) bool {
		return p.Size == len(frame) && p.Source == said.Source && p.Destination == said.Destination && p.Interface != hostVeth
	}
	r.compare(t, frame, said, slices.DeleteFunc(slices.Clone(was), func(p *api.Packet) bool { return !same(p) }))
}

// outcome returns the packets that Weir has handled since the last frame. The second mark is in a
// later batch than the frame: in a batch packets of established flows come first.
func (r *tracer) outcome(t testing.TB) []*api.Packet {
	t.Helper()
	r.untilMarked(t)
	return r.untilMarked(t)
}

// untilMarked sends a mark, and returns the packets that Weir has handled before it.
func (r *tracer) untilMarked(t testing.TB) []*api.Packet {
	t.Helper()
	frame := r.mark(t)
	must(t, r.l.client.tap.Send(frame))
	isMark := func(p *api.Packet) bool { return p.Source == markClient.String() && p.Size == len(frame) }
	deadline := time.After(within)
	for {
		r.mu.Lock()
		at, fault := slices.IndexFunc(r.handled, isMark), r.fault
		var list []*api.Packet
		if at >= 0 {
			list = r.handled[:at]
		}
		r.mu.Unlock()
		if at >= 0 {
			return list
		}
		select {
		case <-r.arrived:
		case <-deadline:
			t.Fatalf("the mark behind a frame is not handled: %v", fault)
		}
	}
}

// compare holds a trace to what was. handled has the packet itself, unless Weir did not get it
// or keeps it.
func (r *tracer) compare(t testing.TB, frame []byte, said *api.Trace, handled []*api.Packet) {
	t.Helper()
	verdict := said.Verdict
	wrong := func(what string) {
		t.Helper()
		list := ""
		for _, p := range handled {
			list += fmt.Sprintf("\n%+v", *p)
		}
		t.Errorf("traced otherwise, %s: verdict %s %s, steering %s %s, connection %+v, sent %+v; handled:%s\n%s",
			what, said.Verdict, said.Reason, said.Steering, said.SteeringError, said.Connection, said.Sent, list, summary(frame))
	}
	if len(handled) > 0 && slices.Contains(limited, handled[0].Reason) {
		return
	}
	if verdict == "queue" { // it may have left the queue since
		return
	}
	r.compared[verdict]++
	if verdict == "kernel" {
		if len(handled) > 0 {
			wrong("Weir has handled it")
		}
		return
	}
	if len(handled) == 0 {
		wrong("Weir has handled nothing")
		return
	}
	was := handled[0]
	switch c := said.Choice; {
	case was.Verdict != verdict || was.Reason != said.Reason:
		wrong("verdict")
	case c != nil && slices.Contains(byChance, c.Rule):
		if !slices.ContainsFunc(c.Candidates, func(e api.TracedEndpoint) bool { return e.Address == was.Endpoint }) {
			wrong("endpoint")
		}
	case said.Sent != nil && (was.SentSource != said.Sent.Source || was.SentDestination != said.Sent.Destination ||
		was.OutInterface != said.Sent.Interface || was.SentSize != said.Sent.Size):
		wrong("sent")
	case said.Sent == nil && was.SentSource != "":
		wrong("something was sent")
	case was.Connection != "" && said.Connection == nil:
		wrong("connection")
	case was.Connection != "" && (was.Endpoint != said.Connection.Endpoint || was.SNAT != said.Connection.SNAT || was.Mode != said.Connection.Mode || was.Client != said.Connection.Client):
		wrong("connection")
	}
}

// weir trace says of the frames of random scenarios what then becomes of them on the wire. The
// scenarios check as in the table that the frames that arrive are the right ones.
func TestWireTraceAgreesWithTheWire(t *testing.T) {
	labtest.Require(t)
	want, seed := traced(t)
	random := rand.New(rand.NewPCG(seed, 0))
	l := newLab(t, "usual")
	defer l.close(t)
	r := &tracer{l: l, arrived: make(chan struct{}, 1), compared: map[string]int{}}
	defer r.follow()()
	r.begin(t)
	for _, s := range []*station{l.client, l.fabric, l.pod} {
		s.sending = r.send
	}
	variants := variantsOf("usual")
	count := func() (n int) {
		for _, c := range r.compared {
			n += c
		}
		return n
	}
	for _, i := range random.Perm(len(variants)) {
		if count() >= want || t.Failed() {
			break
		}
		v := variants[i]
		if strings.HasPrefix(v.test(), "cached/") {
			continue // they assert that the kernel forwards, and the list of handled packets keeps it from that
		}
		t.Run(v.test(), func(t *testing.T) { l.check(t, v) })
	}
	t.Logf("seed %d: %d frames by verdict of the trace: %v", seed, count(), r.compared)
	if count() < want && !t.Failed() {
		t.Errorf("%d frames were compared, want %d", count(), want)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
