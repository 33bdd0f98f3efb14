package conntrack

import (
	"path/filepath"
	"testing"

	"github.com/weirlb/weir/conntrack/flowstate"
	"github.com/weirlb/weir/conntrack/tcp"
)

// readAll takes all records.
func readAll(t *Table) []Record {
	out := make([]Record, 4*recordSlots)
	return out[:t.ReadRecords(out)]
}

// Each way in which a connection leaves the table has a cause, and the record has the tuples, the
// numbers, the ticks and the counts of both directions.
func TestRecordsHaveTheBeginningAndTheEnd(t *testing.T) {
	const start = 1000
	begin := func(w *Worker, i int) (Ref, *NewFlow) {
		f := natFlow(i)
		f.Tick, f.PortLo, f.PortHi = start, 1024, 1024
		return mustCreate(t, w, f), f
	}
	reset := func(tab *Table, r Ref, f *NewFlow) {
		tab.TrackTCP(r, &tcp.Segment{Flags: tcp.FlagRST, Seq: f.Seq + 1}, start+1)
	}
	for name, c := range map[string]struct {
		end   func(tab *Table, w *Worker, r Ref, f *NewFlow)
		cause Cause
		state flowstate.State
	}{
		"deleted": {func(_ *Table, w *Worker, r Ref, _ *NewFlow) { w.Delete(r) }, CauseDeleted, flowstate.SynSent},
		"deleted by a control goroutine": {
			func(tab *Table, _ *Worker, r Ref, _ *NewFlow) { tab.Delete(r) }, CauseDeleted, flowstate.SynSent,
		},
		"expired": {func(tab *Table, w *Worker, _ Ref, _ *NewFlow) {
			for tick := uint32(start); tab.Flows() > 0 && tick < start+1<<20; tick += TicksPerSecond {
				for w.Age(tick) {
				}
			}
		}, CauseExpired, flowstate.SynSent},
		"replaced": {func(tab *Table, w *Worker, r Ref, f *NewFlow) {
			reset(tab, r, f)
			w.Supersede(r)
		}, CauseReplaced, flowstate.Close},
		"port taken": {func(tab *Table, w *Worker, r Ref, f *NewFlow) {
			reset(tab, r, f)
			g := natFlow(2)
			g.Tick, g.PortLo, g.PortHi = start+100*TicksPerSecond, 1024, 1024
			mustCreate(t, w, g)
		}, CausePort, flowstate.Close},
		"evicted": {func(tab *Table, w *Worker, _ Ref, _ *NewFlow) {
			w.evict(start + 1000)
			w.evict(start + 1001)
		}, CauseEvicted, flowstate.SynSent},
	} {
		t.Run(name, func(t *testing.T) {
			tab := openTest(t, Config{MaxFlows: 1024, RecordsPerSecond: 1000})
			w := tab.Worker(0)
			w.Online()
			r, f := begin(w, 1)
			w.CountPacket(r, 40)
			w.CountPacket(r, 60)
			w.CountPacket(r.Other(), 1000)
			snat := tab.NewSrc(r)
			c.end(tab, w, r, f)
			got := readAll(tab)
			if len(got) < 2 {
				t.Fatalf("%+v", got)
			}
			first, last := got[0], got[1]
			for _, x := range []Record{first, last} {
				if x.Client != f.Client || x.Endpoint.Src() != snat || x.Endpoint.Dst() != ep1 || x.Mode != ModeNAT ||
					x.EndpointID != f.EndpointID || x.ServiceID != f.ServiceID || x.Created != start {
					t.Errorf("%+v", x)
				}
			}
			if first.Cause != CauseNone || first.Counts != [2]Count{} {
				t.Errorf("begins with %+v", first)
			}
			if last.Cause != c.cause || flowstate.Of(last.Word) != c.state || last.Counts != [2]Count{{2, 100}, {1, 1000}} {
				t.Errorf("ends with %+v", last)
			}
		})
	}
}

// Of more connections than may be recorded some are: as many as the limit says, over the whole time,
// and both their beginning and their end.
func TestRecordsAreASampleOfManyConnections(t *testing.T) {
	const perSecond, perTick, ticks = 160, 100, 100 * TicksPerSecond
	tab := openTest(t, Config{RecordsPerSecond: perSecond})
	w := tab.Worker(0)
	w.Online()
	begun, ended, late := 0, 0, 0
	for tick := range uint32(ticks) {
		for i := range perTick {
			f := natFlow(i)
			f.Tick, f.PortLo = tick, 1024
			w.Delete(mustCreate(t, w, f))
			w.Quiesce()
		}
		for _, r := range readAll(tab) {
			if r.Cause != CauseNone {
				ended++
				continue
			}
			begun++
			if r.Client.Src() == client(perTick-1) || r.Client.Src() == client(perTick/2) {
				late++
			}
		}
	}
	s := tab.RecordStats()
	if begun != ended || begun+int(s.Skipped) != perTick*ticks || s.Lost != 0 || s.Written != uint64(begun+ended) {
		t.Errorf("%d begun and %d ended in the records, %+v", begun, ended, s)
	}
	// The first second may have twice as many: nothing was recorded before.
	if want := perSecond * (ticks/TicksPerSecond + 1); begun < want*8/10 || begun > want {
		t.Errorf("%d connections are recorded, want about %d", begun, want)
	}
	if late == 0 {
		t.Error("only what comes first in a tick is recorded")
	}
}

// Nobody waits for a reader: what does not fit is lost and counted.
func TestRecordsWithoutAReaderAreLost(t *testing.T) {
	tab := openTest(t, Config{RecordsPerSecond: 1 << 20})
	w := tab.Worker(0)
	w.Online()
	for i := range recordSlots {
		f := natFlow(i % 100)
		f.PortLo = 1024
		w.Delete(mustCreate(t, w, f))
		w.Quiesce()
	}
	if s := tab.RecordStats(); s.Written != recordSlots || s.Lost != recordSlots || s.Skipped != 0 {
		t.Errorf("%+v", s)
	}
	if got := readAll(tab); len(got) != recordSlots {
		t.Errorf("%d records", len(got))
	}
}

// The end of a connection is recorded that an earlier process has begun.
func TestConnectionsOfAnEarlierProcessHaveAnEnd(t *testing.T) {
	path := filepath.Join(t.TempDir(), "flows")
	tab, err := Open(Config{Path: path, MaxFlows: 1024, Workers: 1, MaxEndpoints: 64})
	if err != nil {
		t.Fatal(err)
	}
	w := tab.Worker(0)
	w.Online()
	f := natFlow(1)
	mustCreate(t, w, f)
	w.Offline()
	if err := tab.Close(); err != nil {
		t.Fatal(err)
	}
	tab = openTest(t, Config{Path: path, MaxFlows: 1024, RecordsPerSecond: 1})
	w = tab.Worker(0)
	w.Online()
	w.Delete(tab.lookup(f.Client))
	if got := readAll(tab); len(got) != 1 || got[0].Cause != CauseDeleted || got[0].Client != f.Client {
		t.Errorf("%+v", got)
	}
}
