package worker

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"sync"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/header"
)

// A SYN or INIT may come with the tuple of a flow whose endpoint is gone. The client
// reuses the port and must get another endpoint. The old endpoint's address may be another
// Service's pod by now. But where the Service keeps flows of endpoints that
// are gone, the old connection may be alive, and a forged SYN must not end it.
//
// So Weir asks the client, as RFC 5961 section 4 has it: a challenge ACK. To an ACK of a
// number that it has not sent, a client that wants a new connection answers with a RST of
// that number (RFC 9293 section 3.10.7.3). The number is a cookie that only the receiver of
// the challenge knows. So the RST proves that there is no old connection, and the next SYN
// chooses anew; Linux sends it a few milliseconds later. A client whose connection is alive
// answers with an ACK, or goes on. The firewall of a client may drop the challenge. A
// client that sends nothing else is taken to have no connection when it still sends SYNs
// after challengeSilence.

const (
	// challengeSilence is longer than round trips are. A client's SYN is sent again 1
	// and 3 s after the first (RFC 6298).
	challengeSilence = 2 * secondTicks
	// challengeForgets is the time after which a SYN no longer counts as sent again.
	challengeForgets = 120 * secondTicks
	// sctpSilence is longer than any silence of an association with live ends, by the
	// heartbeats: HB.interval of 30 s, half an RTO more, and the RTO of a lost heartbeat
	// (RFC 9260 sections 8.3 and 16).
	sctpSilence = 40 * secondTicks
	// A cookie is good for one to two periods of 1<<cookieBits ticks, 16 s.
	cookieBits = 8
)

// challenges remembers since when flows with a challenge have been silent, by hash. Another
// flow takes the place when they collide: then silence begins anew, and the cookie stays
// valid.
type challenges [256]challenged

type challenged struct{ hash, tick uint32 }

// since returns the tick from which the flow, whose last packet came at tick seen, has been
// silent under challenge. It returns now for a flow that was not challenged before.
func (s *challenges) since(hash uint64, seen, now uint32) uint32 {
	at := &s[hash%uint64(len(s))]
	if at.hash != uint32(hash>>32) || now-at.tick > challengeForgets || int32(seen-at.tick) >= 0 {
		return now
	}
	return at.tick
}

// note notes that the flow is challenged now. Only a challenge that was sent counts:
// otherwise a flood that uses up the rate of answers makes a client silent that was never
// asked.
func (s *challenges) note(hash uint64, seen, now uint32) {
	s[hash%uint64(len(s))] = challenged{uint32(hash >> 32), s.since(hash, seen, now)}
}

// answersChallenge reports whether packet p, of the client, is the RST that proves that no
// connection of the tuple exists any more, at a tick.
func answersChallenge(p *pkt, tick uint32) bool {
	if p.Flags&(header.RST|header.SYN) != header.RST {
		return false
	}
	seq := header.TCP(p.data[p.L4:]).Seq()
	for _, period := range [2]uint32{tick >> cookieBits, tick>>cookieBits - 1} {
		if _, ack := cookie(&p.key, period); ack == seq {
			return true
		}
	}
	return false
}

// cookieSecret is the key of cookies, of this process.
var cookieSecret = sync.OnceValue(func() (s [32]byte) {
	_, _ = rand.Read(s[:]) // never fails
	return s
})

// cookie returns the numbers of a challenge for a tuple in a period. The input has a
// fixed length, so that SHA-256 of the secret and it is a MAC.
func cookie(k *conntrack.Key, period uint32) (seq, ack uint32) {
	var in [32 + 5*8 + 4]byte
	secret := cookieSecret()
	copy(in[:], secret[:])
	for i, word := range k.W {
		binary.LittleEndian.PutUint64(in[32+8*i:], word)
	}
	binary.LittleEndian.PutUint32(in[32+5*8:], period)
	sum := sha256.Sum256(in[:])
	return binary.LittleEndian.Uint32(sum[0:]), binary.LittleEndian.Uint32(sum[4:])
}
