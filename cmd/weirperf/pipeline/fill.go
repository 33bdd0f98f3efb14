package pipeline

import (
	"context"
	"fmt"
	"time"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/conntrack/flowstate"
	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/lbtest"
)

// filling measures the first packets of connections, from the empty table to the full
// table, until there are enough samples.
func (b *bench) filling(ctx context.Context) (samples, error) {
	const chunk = 1 << 14
	var s samples
	for turn := 0; len(s.net) < b.samples || turn < 2; turn++ {
		if turn > 0 {
			b.m.ForgetFlows()
		}
		for from := 0; from < b.n; from += chunk {
			if ctx.Err() != nil {
				return s, ctx.Err()
			}
			t := []*trace{b.first(from, min(from+chunk, b.n))}
			generation := b.timed(t, false)
			sent, dropped := b.counts()
			allocs := mallocs()
			total := b.timed(t, true)
			allocs = mallocs() - allocs
			if err := b.check(kindNew, t, sent, dropped); err != nil {
				return s, err
			}
			if turn > 0 { // before that memory was not touched
				s.note(total, generation)
				s.allocs = perPacket(allocs, t)
			}
		}
	}
	b.m.ForgetFlows()
	return s, nil
}

// first is the first packets of some flows.
func (b *bench) first(from, to int) *trace {
	t := &trace{maker: newMaker(b.ipv6, b.proto, header.SYN)}
	for n := from; n < to; n++ {
		t.port[portClient] = append(t.port[portClient], t.maker.request(uint32(n)))
	}
	return t
}

// bringUp makes all flows and brings them into their last state. The sent packets are
// compared with the expected packets, byte by byte: a packet of each measured flow and
// direction, and the flow's first. It also measures the first packets of the last flows.
func (b *bench) bringUp(ctx context.Context) (first beginning, err error) {
	last := b.n // the first of the flows that are measured
	if b.n >= leastNew {
		last -= min(b.n, beginningFlows)
	}
	if err := b.begin(ctx, 0, last); err != nil {
		return first, err
	}
	made := time.Now()
	if last < b.n {
		if first, err = b.beginning(ctx, last); err != nil {
			return first, err
		}
	}
	if b.proto == header.ProtoUDP {
		select {
		case <-ctx.Done():
			return first, ctx.Err()
		case <-time.After(time.Until(made.Add(streamAge + time.Since(made)))):
		}
	}
	if err := b.each(ctx, 0, b.n, portClient, header.ACK, false); err != nil {
		return first, err
	}
	if b.mode.answers() {
		if err := b.each(ctx, last, b.n, portServer, header.ACK, false); err != nil {
			return first, err
		}
	}
	if got := b.m.Flows().Flows(); got != b.n {
		return first, fmt.Errorf("the table has %d flows", got)
	}
	return first, b.checkHandshakes()
}

// begin makes flows and has them answered.
func (b *bench) begin(ctx context.Context, from, to int) error {
	err := b.each(ctx, from, to, portClient, header.SYN, true)
	if err != nil || !b.mode.answers() {
		return err
	}
	return b.each(ctx, from, to, portServer, header.SYN|header.ACK, false)
}

// checkHandshakes reports a TCP connection that is not established: it would be measured on
// the slow path, and expire under a slow measurement.
func (b *bench) checkHandshakes() (err error) {
	if b.proto != header.ProtoTCP {
		return nil
	}
	flows := b.m.Flows()
	flows.Range(func(r conntrack.Ref) bool {
		if state := flows.Conn(r).State(); state != flowstate.Established {
			err = fmt.Errorf("after its handshake flow %v is in state %v", flows.Entry(r).Key.Src(), state)
		}
		return err == nil
	})
	return err
}

// each sends a packet of each flow of a range into a port and checks the packets that leave by the
// other. With learn it first notes the choices for the flows.
func (b *bench) each(ctx context.Context, first, end, port int, flags uint8, learn bool) error {
	m := newMaker(b.ipv6, b.proto, flags)
	in, out := b.m.Queue(0, port), b.m.Queue(0, portServer-port)
	packets := make([]packet, 0, perRound)
	for from := first; from < end && ctx.Err() == nil; from += perRound {
		packets = packets[:0]
		for n := uint32(from); n < uint32(min(from+perRound, end)); n++ {
			if port == portClient {
				packets = append(packets, m.request(n))
			} else {
				packets = append(packets, m.answer(n, b.choices[n]))
			}
		}
		m.give(in, b.m.Umem().Bytes(), packets)
		b.m.Round(0)
		if learn {
			if err := b.learn(out, m); err != nil {
				return err
			}
		}
		if err := b.checkOut(out, portServer-port, m, len(packets)); err != nil {
			return err
		}
		out.Out = out.Out[:0]
	}
	return ctx.Err()
}

// learn notes the choices for the flows whose first packets were sent.
func (b *bench) learn(q *lbtest.Memory, m *maker) error {
	for _, d := range q.Out {
		flow, c, err := b.chosen(b.m.Umem().Data(d), m)
		if err != nil {
			return err
		}
		b.choices[flow] = c
	}
	return nil
}
