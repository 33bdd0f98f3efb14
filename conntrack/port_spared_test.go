package conntrack

import (
	"testing"

	"github.com/weirlb/weir/conntrack/tcp"
)

// What ended a connection may not have reached the endpoint, whose connection a new SYN then meets:
// of an abort neither side knows, and a RST may be forged. Each is other than the end of a close.
func TestThePortOfAConnectionThatMayLiveIsSpared(t *testing.T) {
	for _, c := range []struct {
		name  string
		end   func(t *testing.T, tab *Table, r Ref)
		after uint32 // ticks until the connection counts as over, 0 for never
		known bool   // the endpoint's connection is reset before the port passes on
	}{
		{"aborted", func(_ *testing.T, tab *Table, r Ref) { tab.Abort(r, 10) }, 0, true},
		{"reset", func(t *testing.T, tab *Table, r Ref) { talk(t, tab, r, 10, "> RST") }, tcp.ClientSettles + 1, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			tab := openTest(t, Config{})
			w := tab.Worker(0)
			w.Online()
			r := mustCreate(t, w, portFlow(1, 1))
			talk(t, tab, r, 9, handshakeDone...)
			c.end(t, tab, r)
			next, _ := tab.Conn(r).Next(true)
			other := portFlow(2, 1)
			other.Keep = KeepUsed
			for _, at := range []uint32{10, 10 + tcp.ClientSettles} {
				if other.Tick = at; !refused(w, other) {
					t.Fatalf("the port passes on %d ticks after the end", at-10)
				}
			}
			if c.after != 0 {
				other.Tick = 10 + c.after + shortFor
				mustCreate(t, w, other)
				return
			}
			other.Keep, other.Tick = KeepNothing, 12+tcp.ClientSettles
			taken := mustCreate(t, w, other)
			if seq, ok := w.Leftover(taken); ok != c.known || ok && seq != next {
				t.Errorf("the endpoint's connection is reset by number %d (%v), want %d", seq, ok, next)
			}
		})
	}
}

func refused(w *Worker, f *NewFlow) bool {
	_, o := w.Create(f)
	return o == NoPort
}
