package fleet

import (
	"encoding/binary"
	"math/bits"

	"github.com/weirlb/weir/lb/table"
)

// splitmix is the generator SplitMix64 (Steele et al., OOPSLA 2014) as a function of the
// position, so that flow i is the same in every run and needs no memory.
func splitmix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// destination is the words of a tuple that all flows share.
var destination = func() (w struct{ addr, ports, rest uint64 }) {
	a := frontendAddr.As4()
	w.addr = uint64(binary.LittleEndian.Uint32(a[:])) << 32
	w.ports = uint64(bits.ReverseBytes16(frontendPort)) << 16
	w.rest = protoTCP<<32 | 4<<40
	return w
}()

// flow is a client's connection.
type flow struct {
	choice uint64 // the hash by which Weir chooses, from the tuple
	router uint64 // the hash by which routers choose
	age    uint64 // a random number
}

// makeFlow is flow i of a seed.
func makeFlow(seed, i uint64) flow {
	r := splitmix(seed ^ i*0xd1342543de82ef95)
	tuple := [5]uint64{0: destination.addr | r&0xffffffff, 4: destination.rest | destination.ports | r>>48}
	return flow{choice: table.Hash(&tuple), router: splitmix(r ^ 0x5851f42d4c957f2d), age: splitmix(r + 1)}
}
