package l2

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/hashicorp/memberlist"
	"pgregory.net/rapid"
)

// pair are two nodes that are members for each other, and all that any two processes of theirs have said.
type pair struct {
	nodes    [2]*link
	recorded [2][][]byte // by the node that they are of
	process  uint64
}

// begin starts a process of a node. The other node knows that it is another.
func (p *pair) begin(i int, now time.Time) {
	l := lan(now)
	l.node = fmt.Sprint("node", i)
	l.local = netip.AddrFrom4([4]byte{192, 0, 2, byte(i + 1)})
	p.process++
	l.process = p.process
	l.say()
	p.nodes[i] = l
	for j, l := range p.nodes {
		if o := p.nodes[1-j]; l != nil && o != nil {
			n := &memberlist.Node{Name: o.member(), Addr: o.local.AsSlice()}
			l.left(n)
			l.came(l.member(), n)
		}
	}
}

// exchange passes on what the nodes have to say to each other. replay is called before each message.
func (p *pair) exchange(now time.Time, replay func()) {
	for i, l := range p.nodes {
		replay()
		l.step(now)
		o, to := l.others[p.nodes[1-i].member()], p.nodes[1-i]
		if o.dirty {
			said := o.saying(l.said, &l.challenges, now)
			b := said.encode()
			p.recorded[i] = append(p.recorded[i], b)
			to.told(b, now)
		}
	}
}

// known reports whether each has the claims of the process that the other is now.
func (p *pair) known() bool {
	for i, l := range p.nodes {
		to := p.nodes[1-i]
		if o := l.others[to.member()]; o.peer == nil || o.peer.Process != to.process || o.peer.Sequence != to.sequence {
			return false
		}
	}
	return true
}

// A host that sends recorded claims of both nodes again, of many former processes and of those of now, in any
// order and all the time, hides no claims for longer than a node that is new waits for them.
func TestRecordedClaimsHideNone(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p, now := &pair{}, time.Now()
		order, replays := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0)), rapid.IntRange(1, 100).Draw(t, "replays")
		p.begin(0, now)
		p.begin(1, now)
		step := func(replay bool) {
			now = now.Add(10 * time.Millisecond)
			p.exchange(now, func() {
				for i := 0; i < 2 && replay; i++ {
					for range replays {
						p.nodes[1-i].told(p.recorded[i][order.IntN(len(p.recorded[i]))], now)
					}
				}
			})
		}
		until := func(what string, replay bool) {
			for n := 0; !p.known(); n++ {
				if n > int(joinFor/(10*time.Millisecond)) {
					t.Fatalf("%s: the claims are not known after %v", what, joinFor)
				}
				step(replay)
			}
		}
		until("at first", false)
		for range rapid.IntRange(1, 60).Draw(t, "former processes") {
			p.begin(order.IntN(2), now)
			until("a new process", false)
		}
		for range 5 {
			switch i := rapid.IntRange(0, 1).Draw(t, "node"); rapid.SampledFrom([]string{"begin", "both begin", "say"}).Draw(t, "change") {
			case "both begin":
				p.begin(1-i, now)
				fallthrough
			case "begin":
				p.begin(i, now)
			case "say":
				p.nodes[i].say()
			}
			until("under replays", true)
		}
	})
}
