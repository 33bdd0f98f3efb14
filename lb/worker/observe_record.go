package worker

import (
	"net/netip"
	"sync/atomic"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/pcapfilter"
	"github.com/weirlb/weir/lb/tap"
)

// tell writes the packet of a slot to the taps whose filter passes the received or the sent
// frame. sent is nil where no frame leaves.
func (o *observation) tell(at int, tick uint32, sent []byte, size uint32, out int32) {
	s := &o.slots[at]
	received := o.data[at*o.snap:][:s.kept]
	var p pcapfilter.Packet
	if sent != nil {
		pcapfilter.Read(sent, int(size), &p)
	}
	in := s.in
	if s.told {
		in = -1
	}
	var conn tap.Record // the fields of the connection, once they are known
	known := false
	for k, t := range o.taps {
		if s.matched>>k&1 == 0 && (sent == nil || !t.Match(&p)) {
			continue
		}
		r := t.Begin(o.worker, tick, in, out)
		if r == nil {
			continue
		}
		if !known {
			o.connOf(received, int(s.length), &conn)
			known = true
		}
		inData, outData := r.InData, r.OutData
		*r = conn
		r.InData, r.OutData = inData, outData
		r.Time, r.ID, r.In, r.Out = s.time, s.id, s.in, out
		r.Verdict, r.Reason, r.HasReason = s.verdict, uint8(s.reason), s.refused
		if !s.told {
			r.InLen = s.length
			t.Copy(&r.InData, received)
		}
		if sent != nil {
			r.OutLen = size
			t.Copy(&r.OutData, sent)
		}
		t.Commit(o.worker)
	}
	s.told = true
}

// connOf sets the fields of r to the connection of a received frame, if there is any.
func (o *observation) connOf(f []byte, size int, r *tap.Record) {
	var p pcapfilter.Packet
	pcapfilter.Read(f, size, &p)
	r.Proto = p.Proto
	if !p.Ports {
		return
	}
	k := conntrack.MakeKey(netip.AddrPortFrom(p.Src, p.SrcPort), netip.AddrPortFrom(p.Dst, p.DstPort), p.Proto)
	ref := o.conntrack.Lookup(o.table.Hash(&k), &k)
	if ref == 0 {
		return
	}
	if !ref.Forward() {
		ref = ref.Other()
	}
	t := o.table
	e, c := t.Entry(ref), t.Conn(ref)
	key := e.Tuple()
	r.Conn, r.Service, r.Mode = t.Hash(&key), atomic.LoadUint32(&c.ServiceID), uint8(e.Mode)
	r.Client, r.Frontend, r.Endpoint = key.Src(), key.Dst(), t.NewDst(ref)
	if e.Mode == conntrack.ModeNAT {
		r.SNAT = t.NewSrc(ref)
	}
}
