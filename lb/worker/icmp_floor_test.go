package worker

import (
	"testing"

	"github.com/weirlb/weir/lb/header"
)

// An endpoint keeps one path MTU for all clients, which it knows by Weir's address: no
// client may have it told less than there is a way for. What is not too narrow is passed
// on as it is, and so is what a router behind tells the client alone.
func TestAnEndpointIsNotToldOfAPathNarrowerThanTheLeast(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		for _, c := range []struct{ least, says, told4, told6 uint32 }{
			{1280, 68, 1280, 1280}, {1280, 0, 1280, 1280}, {1280, 552, 1280, 1280}, {1280, 1279, 1280, 1280},
			{1280, 1280, 1280, 1280}, {1280, 1400, 1400, 1400}, {576, 576, 576, 1280}, {576, 300, 576, 1280},
		} {
			x := converse(t, v6, header.ProtoTCP)
			x.w.cfg.MinPathMTU = uint16(c.least)
			e, told := errors4[2], c.told4
			if v6 {
				e, told = errors6[1], c.told6
			}
			in, want := x.fromFront(x.client, e.typ, e.code, c.says)
			want.rest = told
			sameFrame(t, x.one(portClient, in.build(t), portServer), want.build(t))

			in, want = x.fromBehind(x.router, e.typ, e.code, c.says)
			sameFrame(t, x.one(portServer, in.build(t), portClient), want.build(t))
			x.framesHome()
		}
	}
}

// One source's errors about path MTUs are limited, and others' come through.
func TestErrorsAboutPathMTUsAreLimitedPerSource(t *testing.T) {
	x := converse(t, false, header.ProtoTCP)
	in, _ := x.fromFront(x.client, 3, 4, 1300)
	for range 200 {
		x.give(portClient, in.build(t))
		x.w.Round()
		x.q[portServer].Out = x.q[portServer].Out[:0]
	}
	if n := x.drops()["reply-rate-limited"]; n < 200-errorsPerSource-10 || n > 200-errorsPerSource {
		t.Errorf("%d of 200 were dropped", n)
	}
	in, _ = x.fromFront(x.router, 3, 4, 1300)
	x.one(portClient, in.build(t), portServer)
	unreachable, _ := x.fromFront(x.client, 3, 1, 0) // tells nothing of the path
	x.one(portClient, unreachable.build(t), portServer)
}
