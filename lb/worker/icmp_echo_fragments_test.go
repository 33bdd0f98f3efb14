package worker

import (
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/weirlb/weir/lb/counter"
	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/ratelimit"
)

// longPing is a ping of 3,008 bytes and its reply, in three pieces.
func longPing(t *testing.T, v6 bool, id uint32) (request, reply [][]byte) {
	t.Helper()
	req, rep := ping(v6, 3000)
	return cut(t, req.build(t), id, 0, 1208, 2416), cut(t, rep.build(t), id, 0, 1208, 2416)
}

func TestPingsInFragmentsAreAnsweredInFragments(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		for id, order := range [][]int{{0, 1, 2}, {2, 1, 0}, {1, 0, 2}} {
			t.Run(fmt.Sprintf("v6=%v/%v", v6, order), func(t *testing.T) {
				b := newBench(t)
				b.answerPings(empty4, vip6)
				request, reply := longPing(t, v6, uint32(id+1))
				var got [][]byte
				for _, n := range order {
					b.give(portClient, tags(request[n], 7))
					got = append(got, b.round()[portClient]...)
				}
				got = append(got, b.round()[portClient]...)
				if len(got) != 3 {
					t.Fatalf("%d pieces, drops %v", len(got), b.drops())
				}
				want := map[string]bool{}
				for n := range reply {
					want[string(tags(reply[n], 7))] = true
				}
				for _, f := range got {
					if !want[string(f)] {
						t.Errorf("got %x", f)
					}
					delete(want, string(f))
				}
				c := b.w.published.read()
				if c.Values[counter.EchoReplies] != 1 || c.Values[counter.Fragments] != 3 || len(c.Drops) != 0 {
					t.Errorf("%+v", c)
				}
				b.framesHome()
			})
		}
	}
}

// What a ping's pieces may not be.
func TestPiecesOfPingsThatAreNotAnswered(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		for _, tt := range []struct {
			name   string
			change func(b *bench, request [][]byte) [][]byte
			port   int // -1: dropped
			reason Drop
			n      uint64
			ok     int // pieces that are answered
		}{
			{"another message", func(_ *bench, r [][]byte) [][]byte { r[0][l4Of(r[0])] ^= 8; r[0][l4Of(r[0])] ^= 9; return r }, portHost, 0, 0, 0},
			{"a header that is cut", func(_ *bench, r [][]byte) [][]byte {
				req, _ := ping(v6, 100)
				f := cut(t, req.build(t), 9, 0, 8)[0]
				return [][]byte{cutTo(f, 4)}
			}, -1, DropBadFragment, 1, 0},
			{"a later piece alone", func(b *bench, r [][]byte) [][]byte { return r[1:2] }, -1, DropFragmentExpired, 1, 0},
			{"a piece twice", func(b *bench, r [][]byte) [][]byte { return [][]byte{r[0], r[1], r[1]} }, -1, DropFragmentOverlap, 1, 2},
			{"over the limit", func(b *bench, r [][]byte) [][]byte { b.w.echoes = ratelimit.New(0, 2, echoesPerSource); return r }, -1, DropEchoLimit, 1, 2},
			{"from the start", func(b *bench, r [][]byte) [][]byte { b.w.echoes = ratelimit.New(0, 0, echoesPerSource); return r }, -1, DropOrphanFragment, 2, 0},
		} {
			t.Run(fmt.Sprintf("v6=%v/%s", v6, tt.name), func(t *testing.T) {
				b := newBench(t)
				b.answerPings(empty4, vip6)
				request, _ := longPing(t, v6, 7)
				request = tt.change(b, request)
				var got [3]int
				count := func() {
					for port, list := range b.roundAtTheSameTime() {
						got[port] += len(list)
					}
				}
				b.w.beginRound()
				for _, f := range request {
					b.give(portClient, f)
					count()
				}
				b.w.tick += fragQueueTicks + 1
				count()
				want := [3]int{portClient: tt.ok}
				if tt.port >= 0 {
					want[tt.port] += len(request)
				}
				if got != want || tt.port < 0 && b.w.drops[tt.reason] != tt.n {
					t.Errorf("sent %v, want %v; drops %v", got, want, b.drops())
				}
				b.framesHome()
			})
		}
	}
}

// l4Of is where the ICMP header is in a first fragment.
func l4Of(f []byte) int {
	if f[14]>>4 == 6 {
		return header.EthernetLen + header.IPv6Len + 8
	}
	return header.EthernetLen + header.IPv4Len
}

// cutTo leaves n bytes of a first fragment's payload.
func cutTo(f []byte, n int) []byte {
	f = f[:l4Of(f)+n]
	if ip := f[14:]; ip[0]>>4 == 6 {
		binary.BigEndian.PutUint16(ip[4:], uint16(8+n))
	} else {
		binary.BigEndian.PutUint16(ip[2:], uint16(header.IPv4Len+n))
		ip[10], ip[11] = 0, 0
		binary.LittleEndian.PutUint16(ip[10:], header.Checksum(0, ip[:header.IPv4Len]))
	}
	return f
}
