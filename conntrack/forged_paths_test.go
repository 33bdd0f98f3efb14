package conntrack

import "github.com/weirlb/weir/conntrack/tcp"

// A path notes a segment of a steady connection, which has an ACK and no other flag that counts.
type path func(x *crossing, r Ref, g *wire)

// allPaths are the paths that segments of a connection take in turn.
var allPaths = [][]path{{onSlowPath}, {onFastPath}, {onFastPath, onFastPath, inKernel, onSlowPath}}

// onFastPath notes a segment as the fast path of a worker does.
func onFastPath(x *crossing, r Ref, g *wire) {
	e := x.tab.Entry(r)
	if (e.Touch(x.tick) || Milestone(g.seq, g.length)) && e.Note(g.seq+g.length, g.ack) {
		x.tab.Sample(r, g.seq, g.seq+g.length, g.ack)
	}
}

// inKernel notes a segment as the program in the kernel does.
func inKernel(x *crossing, r Ref, g *wire) {
	if x.tab.Entry(r).Touch(x.tick) || Milestone(g.seq, g.length) {
		x.tab.Changing(r).Sample(r.Forward(), g.seq, g.seq+g.length, g.ack)
	}
}

// onSlowPath leaves a segment to TrackTCP.
func onSlowPath(x *crossing, r Ref, g *wire) {
	x.tab.TrackTCP(r, &tcp.Segment{Flags: g.flags, Seq: g.seq, Ack: g.ack, Length: g.length}, x.tick)
}

// steadily has segment g pass if the connection of r is steady, by the next path.
func (x *crossing) steadily(r Ref, g *wire) bool {
	if x.tab.NextHop(r) != aWord || g.flags&^tcp.FlagPSH != tcp.FlagACK {
		return false
	}
	x.passed++
	x.paths[x.passed%len(x.paths)](x, r, g)
	return true
}
