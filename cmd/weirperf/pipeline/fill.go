package pipeline

import (
	"context"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/weirlb/weir/lb"
	"github.com/weirlb/weir/lb/header"
)

// filling measures the first packets of connections, from the empty table to the
// full one, as often as makes enough samples.
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
	t := &trace{maker: newMaker(b.proto, header.SYN)}
	for n := from; n < to; n++ {
		t.port[portClient] = append(t.port[portClient], t.maker.request(uint32(n)))
	}
	return t
}

// bringUp makes all flows and brings them into their last state.
func (b *bench) bringUp(ctx context.Context) error {
	const chunk = perRound * 64
	made := time.Now()
	for from := 0; from < b.n; from += perRound {
		t := b.first(from, min(from+perRound, b.n))
		q := b.m.Queue(0, portClient)
		t.maker.give(q, b.m.Area().Bytes(), t.port[portClient])
		b.m.Round(0)
		if err := b.learn(b.m.Queue(0, portServer)); err != nil {
			return err
		}
	}
	for pass, flags := range []uint8{header.SYN | header.ACK, header.ACK} {
		if pass == 1 && b.proto == header.ProtoUDP {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(time.Until(made.Add(streamAge + time.Since(made)))):
			}
		}
		for from := 0; from < b.n; from += chunk {
			b.run(0, b.once(pass, flags, from, min(from+chunk, b.n)), true)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	if got := b.m.Flows().Flows(); got != b.n {
		return fmt.Errorf("the table has %d flows", got)
	}
	return nil
}

// once is one packet of each of some flows: an answer, then a request.
func (b *bench) once(pass int, flags uint8, from, to int) *trace {
	t := &trace{maker: newMaker(b.proto, flags)}
	for n := uint32(from); n < uint32(to); n++ {
		if pass == 0 {
			t.port[portServer] = append(t.port[portServer], t.maker.answer(n, b.reverse[n]))
		} else {
			t.port[portClient] = append(t.port[portClient], t.maker.request(n))
		}
	}
	return t
}

// learn notes what was chosen for the flows whose first packets were sent.
func (b *bench) learn(q *lb.Memory) error {
	m := newMaker(b.proto, 0)
	for _, d := range q.Out {
		f := b.m.Area().Data(d)
		n := binary.LittleEndian.Uint32(f[m.payload:])
		if n >= uint32(b.n) {
			return fmt.Errorf("a packet of flow %d came out", n)
		}
		b.reverse[n] = answerer{
			snat:     uint16(binary.BigEndian.Uint32(f[atIP+12:]) - snatNet),
			endpoint: uint16(binary.BigEndian.Uint32(f[atIP+16:]) - endpointNet),
			port:     binary.BigEndian.Uint16(f[atL4:]),
		}
	}
	q.Out = q.Out[:0]
	return nil
}
