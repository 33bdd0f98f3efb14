package l2

import (
	"encoding/binary"
	"encoding/json"
	"net/netip"
	"testing"
	"time"

	"github.com/hashicorp/memberlist"
)

// FuzzMessages gives a node what arrives from the link, after memberlist has taken it apart or before:
// claims in messages and streams, members that come, are refused and go, hellos with and without the
// key, and frames. Claims count only with the answer to a challenge, and what is kept is bounded.
func FuzzMessages(f *testing.F) {
	const name = "b/192.0.2.2"
	said := claims{Member: name, Node: "b", MAC: client.String(), Process: 1, Sequence: 1, Challenge: 7, Answers: []uint64{1}, Owned: []netip.Addr{a4}}
	message := func(kind byte, payload []byte) []byte {
		return append(binary.BigEndian.AppendUint16([]byte{kind}, uint16(len(payload))), payload...)
	}
	member := append([]byte{192, 0, 2, 2}, name...)
	genuine := []byte{6, 0, 1, 2}
	came := message(2, member)
	f.Add(append(came, message(0, said.encode())...))
	f.Add(append(append(came, genuine...), message(1, said.encode())...))
	f.Add(append(append(append(came, genuine...), message(3, member)...), came...))
	f.Add(message(4, append([]byte{192, 0, 2, 3}, "weir"...)))
	f.Add(message(4, append([]byte{192, 0, 2, 3}, greeting([]byte("key"), netip.MustParseAddr("192.0.2.3"))...)))
	f.Add(message(5, probe(a4, client)))
	f.Fuzz(func(t *testing.T, b []byte) {
		now := time.Now()
		l := lan(now)
		l.key, l.Local = []byte("key"), nil
		answered := map[netip.Addr]bool{a4: true}
		l.answers.Store(&answered)
		l.known.Store(&answered)
		l.addresses[a4] = &address{wanted: true}
		d := delegate{&members{link: l, name: l.member()}}
		proved := map[string]bool{}
		for len(b) >= 3 {
			kind, n := b[0], int(binary.BigEndian.Uint16(b[1:]))
			payload := b[3:min(len(b), 3+n)]
			b = b[3+len(payload):]
			node := nodeOf(payload)
			switch kind {
			case 0:
				d.NotifyMsg(payload)
			case 1:
				d.MergeRemoteState(payload, false)
			case 2:
				if d.NotifyAlive(node) == nil {
					d.NotifyJoin(node)
					delete(proved, node.Name)
				}
			case 3:
				d.NotifyLeave(node)
				delete(proved, node.Name)
			case 4:
				if a, ok := netip.AddrFromSlice(node.Addr); ok {
					l.heardHello(hello{from: a, otherKey: string(greeting(l.key, a)) != node.Name}, now)
				}
			case 5:
				l.hear(payload)
			case 6: // a member answers
				for name, o := range l.others {
					if o.challenge != 0 {
						c := claims{Member: name, Node: name, MAC: client.String(), Process: uint64(len(payload)), Sequence: 1, Answers: []uint64{o.challenge}}
						proved[name] = true
						d.NotifyMsg(c.encode())
					}
				}
			}
			l.step(now)
			now = now.Add(10 * time.Millisecond)
		}
		for name, o := range l.others {
			if o.peer != nil && !proved[name] {
				t.Errorf("claims of %q count without an answer: %+v", name, o.peer.claims)
			}
			if len(o.answers) > maxAnswers {
				t.Errorf("%d answers are kept", len(o.answers))
			}
		}
		if len(l.others) >= maxMembers || len(l.strangers) > maxMembers+maxOtherKeys || len(l.challenges.heard) > maxProcesses {
			t.Errorf("%d members, %d strangers, %d processes", len(l.others), len(l.strangers), len(l.challenges.heard))
		}
		l.say()
		if p, err := decode(d.LocalState(false)); err != nil || p.Member != l.member() || !json.Valid(d.LocalState(true)) || d.NodeMeta(512) != nil {
			t.Errorf("what this node says cannot be read: %v", err)
		}
	})
}

// nodeOf is a member with the address and the name in b.
func nodeOf(b []byte) *memberlist.Node {
	n := min(4, len(b))
	return &memberlist.Node{Addr: b[:n], Name: string(b[n:]), Port: Port}
}
