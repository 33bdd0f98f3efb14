package pipeline

import (
	"context"
	"time"

	"github.com/weirlb/weir/lb/header"
)

// beginning are the figures of flows in their first two seconds. A figure that does not
// apply, or that the machine was too slow for, has no samples.
type beginning struct {
	answer samples // first answers
	early  samples // UDP: the packets after the first answer, or after the first request
}

const (
	// beginningFlows is the number of flows that are measured in their first two seconds.
	beginningFlows = 1 << 16
	// earlyAge is an age at which no UDP flow is in its last state.
	earlyAge = 1900 * time.Millisecond
	// earlyLen is the number of packets of a sample, per port.
	earlyLen = 1 << 16
)

// beginning makes the flows from number from on and measures their first packets.
func (b *bench) beginning(ctx context.Context, from int) (first beginning, err error) {
	made := time.Now()
	if err := b.each(ctx, from, b.n, portClient, header.SYN, true); err != nil {
		return first, err
	}
	if b.mode.answers() {
		if first.answer, err = b.answers(ctx, from); err != nil {
			return first, err
		}
	}
	if b.proto != header.ProtoUDP {
		return first, nil
	}
	s := &first.early
	for len(s.net) < b.samples && ctx.Err() == nil {
		t := []*trace{b.traceOf(from, earlyLen)}
		generation := b.timed(t, false)
		sent, dropped := b.counts()
		allocs := mallocs()
		total := b.timed(t, true)
		allocs = mallocs() - allocs
		if err := b.check(kindEarly, t, sent, dropped); err != nil {
			return first, err
		}
		if time.Since(made) > earlyAge {
			break
		}
		s.note(total, generation)
		s.allocs = perPacket(allocs, t)
	}
	return first, ctx.Err()
}

// answers measures the first answers to the flows from number from on, in parts.
func (b *bench) answers(ctx context.Context, from int) (s samples, err error) {
	part := max(leastNew, (b.n-from)/8)
	for ; from < b.n && ctx.Err() == nil; from += part {
		t := &trace{maker: newMaker(b.ipv6, b.proto, header.SYN|header.ACK)}
		for n := uint32(from); n < uint32(min(from+part, b.n)); n++ {
			t.port[portServer] = append(t.port[portServer], t.maker.answer(n, b.choices[n]))
		}
		traces := []*trace{t}
		generation := b.timed(traces, false)
		sent, dropped := b.counts()
		allocs := mallocs()
		total := b.timed(traces, true)
		allocs = mallocs() - allocs
		if err := b.check(kindAnswer, traces, sent, dropped); err != nil {
			return s, err
		}
		s.note(total, generation)
		s.allocs = perPacket(allocs, traces)
	}
	return s, ctx.Err()
}
