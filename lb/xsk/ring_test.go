package xsk

import (
	"math"
	"runtime"
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"
)

// kernel is the other side of the rings of a socket. It keeps indices of its
// own and goes by the documented layout alone, not by this package's code.
type kernel struct {
	producer, consumer, flags *uint32
	size                      uint32
}

// newRing makes a ring whose indices start at start.
func newRing(size, start uint32) (indices, *kernel) {
	k := &kernel{new(uint32), new(uint32), new(uint32), size}
	*k.producer, *k.consumer = start, start
	return indices{
		producer: k.producer, consumer: k.consumer, flags: k.flags,
		cachedProducer: start, cachedConsumer: start, size: size, mask: size - 1,
		rejected: new(atomic.Uint64),
	}, k
}

// produce writes one entry if there is room.
func (k *kernel) produce(write func(at uint32)) bool {
	p := atomic.LoadUint32(k.producer)
	if p-atomic.LoadUint32(k.consumer) == k.size {
		return false
	}
	write(p % k.size)
	atomic.StoreUint32(k.producer, p+1)
	return true
}

// consume reads one entry if there is one.
func (k *kernel) consume(read func(at uint32)) bool {
	c := atomic.LoadUint32(k.consumer)
	if c == atomic.LoadUint32(k.producer) {
		return false
	}
	read(c % k.size)
	atomic.StoreUint32(k.consumer, c+1)
	return true
}

// starts are initial indices: the second makes the rings wrap at 2^32 soon.
var starts = map[string]uint32{"from zero": 0, "across 2^32": math.MaxUint32 - 1000}

const ringTestEntries = 50_000

func TestFillRingDeliversInOrderToTheKernel(t *testing.T) {
	for name, start := range starts {
		t.Run(name, func(t *testing.T) {
			ring, k := newRing(64, start)
			r := addrProducer{ring, make([]uint64, 64)}
			done := make(chan bool)
			go func() {
				defer close(done)
				for next := uint64(0); next < ringTestEntries; {
					if !k.consume(func(at uint32) {
						if got := r.entries[at]; got != next {
							t.Errorf("entry %d is %d", next, got)
						}
					}) {
						runtime.Gosched()
						continue
					}
					next++
				}
			}()
			var batch [100]uint64 // more than fits: puts come up short
			for next := 0; next < ringTestEntries; {
				n := min(1+next%len(batch), ringTestEntries-next)
				for i := range n {
					batch[i] = uint64(next + i)
				}
				put := r.put(batch[:n])
				if put == 0 {
					runtime.Gosched()
				}
				next += put
			}
			<-done
		})
	}
}

func TestCompletionRingTakesMaskedAddressesInOrder(t *testing.T) {
	for name, start := range starts {
		t.Run(name, func(t *testing.T) {
			ring, k := newRing(64, start)
			r := addrConsumer{ring, make([]uint64, 64)}
			go func() {
				for next := uint64(0); next < ringTestEntries; {
					if !k.produce(func(at uint32) { r.entries[at] = next*FrameSize + Headroom }) {
						runtime.Gosched()
						continue
					}
					next++
				}
			}()
			var out [7]uint64
			for next := 0; next < ringTestEntries; {
				n := r.take(out[:1+next%len(out)], ^uint64(FrameSize-1))
				if n == 0 {
					runtime.Gosched()
				}
				for _, addr := range out[:n] {
					if addr != uint64(next*FrameSize) {
						t.Fatalf("entry %d is %#x", next, addr)
					}
					next++
				}
			}
		})
	}
}

// TestForwardingKeepsOrderAndPackets runs the receive ring into the transmit
// ring, with a kernel at each, and packets of one to five buffers.
func TestForwardingKeepsOrderAndPackets(t *testing.T) {
	for name, start := range starts {
		t.Run(name, func(t *testing.T) {
			rxRing, rxKernel := newRing(64, start)
			txRing, txKernel := newRing(32, start)
			rx := descConsumer{indices: rxRing, entries: make([]Desc, 64)}
			tx := descProducer{txRing, make([]Desc, 32)}
			buffersOf := func(packet uint64) uint64 { return 1 + packet%5 }
			go func() {
				for packet := uint64(0); packet < ringTestEntries/3; packet++ {
					for b := range buffersOf(packet) {
						d := Desc{Addr: packet, Len: uint32(b)}
						if b < buffersOf(packet)-1 {
							d.Options = Continued
						}
						for !rxKernel.produce(func(at uint32) { rx.entries[at] = d }) {
							runtime.Gosched()
						}
					}
				}
			}()
			done := make(chan bool)
			go func() {
				defer close(done)
				for packet := uint64(0); packet < ringTestEntries/3; packet++ {
					for b := range buffersOf(packet) {
						var d Desc
						for !txKernel.consume(func(at uint32) { d = tx.entries[at] }) {
							runtime.Gosched()
						}
						last := b == buffersOf(packet)-1
						if d.Addr != packet || uint64(d.Len) != b || (d.Options == 0) != last {
							t.Errorf("packet %d buffer %d is %+v", packet, b, d)
							return
						}
					}
				}
			}()
			var batch [9]Desc
			for running := true; running; {
				n := rx.take(batch[:])
				if n > 0 && batch[n-1].Options&Continued != 0 {
					t.Fatal("Receive ended inside a packet")
				}
				for sent := 0; sent < n; {
					m := tx.put(batch[sent:n])
					if m == 0 {
						runtime.Gosched()
					}
					sent += m
				}
				select {
				case <-done:
					running = false
				default:
					runtime.Gosched()
				}
			}
		})
	}
}

func TestReceiveLeavesAnUnfinishedPacketOnTheRing(t *testing.T) {
	ring, k := newRing(64, math.MaxUint32)
	r := descConsumer{indices: ring, entries: make([]Desc, 64)}
	for _, options := range []uint32{0, Continued, Continued} {
		k.produce(func(at uint32) { r.entries[at] = Desc{Options: options} })
	}
	out := make([]Desc, 64)
	if n := r.take(out); n != 1 {
		t.Fatalf("took %d of one packet and the beginning of another", n)
	}
	if n := r.take(out); n != 0 {
		t.Fatalf("took %d of an unfinished packet", n)
	}
	if got := atomic.LoadUint32(k.consumer); got != 0 {
		t.Errorf("consumer index %d: descriptors released that were not taken", got)
	}
	k.produce(func(at uint32) { r.entries[at] = Desc{Len: 9} })
	if n := r.take(out[:2]); n != 0 {
		t.Fatalf("took %d of a packet larger than the room for it", n)
	}
	if n := r.take(out); n != 3 || out[2].Len != 9 {
		t.Fatalf("took %d, last %+v", n, out[2])
	}
}

func TestTransmitPutsWholePacketsOnly(t *testing.T) {
	ring, k := newRing(4, 0)
	r := descProducer{ring, make([]Desc, 4)}
	packets := []Desc{{Options: Continued}, {}, {Options: Continued}, {Options: Continued}, {}}
	if n := r.put(packets); n != 2 {
		t.Fatalf("put %d: the second packet does not fit", n)
	}
	if n := r.put(packets[2:]); n != 0 {
		t.Fatalf("put %d of a packet that does not fit", n)
	}
	k.consume(func(uint32) {})
	if n := r.put(packets[2:]); n != 3 {
		t.Fatalf("put %d after room was made", n)
	}
}

func TestNothingToDoTouchesNoIndex(t *testing.T) {
	ring, k := newRing(4, 7)
	ring.submit(0)
	ring.release(0)
	if *k.producer != 7 || *k.consumer != 7 || ring.cachedProducer != 7 || ring.cachedConsumer != 7 {
		t.Errorf("indices moved: %d %d", *k.producer, *k.consumer)
	}
}

// TestRingsAreQueues compares both kinds of ring with a slice.
func TestRingsAreQueues(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := uint32(1) << rapid.IntRange(0, 5).Draw(t, "log2 size")
		start := rapid.Uint32().Draw(t, "start")
		toRing, toKernel := newRing(size, start)
		fromRing, fromKernel := newRing(size, start)
		to := addrProducer{toRing, make([]uint64, size)}
		from := addrConsumer{fromRing, make([]uint64, size)}
		var toModel, fromModel []uint64
		next := uint64(0)
		t.Repeat(map[string]func(*rapid.T){
			"put": func(t *rapid.T) {
				batch := make([]uint64, rapid.IntRange(0, 40).Draw(t, "n"))
				for i := range batch {
					batch[i] = next + uint64(i)
				}
				want := min(len(batch), int(size)-len(toModel))
				if got := to.put(batch); got != want {
					t.Fatalf("put %d of %d with %d of %d taken, want %d", got, len(batch), len(toModel), size, want)
				}
				toModel = append(toModel, batch[:want]...)
				next += uint64(want)
			},
			"kernel consumes": func(t *rapid.T) {
				got := uint64(0)
				if ok := toKernel.consume(func(at uint32) { got = to.entries[at] }); ok != (len(toModel) > 0) {
					t.Fatalf("consumed %v with %d on the ring", ok, len(toModel))
				} else if ok && got != toModel[0] {
					t.Fatalf("got %d, want %d", got, toModel[0])
				} else if ok {
					toModel = toModel[1:]
				}
			},
			"kernel produces": func(t *rapid.T) {
				next++
				if fromKernel.produce(func(at uint32) { from.entries[at] = next }) {
					fromModel = append(fromModel, next)
				}
			},
			"take": func(t *rapid.T) {
				out := make([]uint64, rapid.IntRange(0, 40).Draw(t, "n"))
				n := from.take(out, math.MaxUint64)
				if want := min(len(out), len(fromModel)); n != want {
					t.Fatalf("took %d, want %d", n, want)
				}
				for i, v := range out[:n] {
					if v != fromModel[i] {
						t.Fatalf("entry %d is %d, want %d", i, v, fromModel[i])
					}
				}
				fromModel = fromModel[n:]
			},
		})
	})
}

// BenchmarkForward moves a batch of 64 from the receive to the transmit ring
// and the frames back to the fill ring, with the kernel's part played in the
// same goroutine.
func BenchmarkForward(b *testing.B) {
	const size, batch = 4096, 64
	rxRing, rxKernel := newRing(size, 0)
	txRing, txKernel := newRing(size, 0)
	fillRing, fillKernel := newRing(2*size, 0)
	rx := descConsumer{indices: rxRing, entries: make([]Desc, size)}
	tx := descProducer{txRing, make([]Desc, size)}
	fill := addrProducer{fillRing, make([]uint64, 2*size)}
	var descs [batch]Desc
	var addrs [batch]uint64
	b.ReportAllocs()
	for b.Loop() {
		atomic.AddUint32(rxKernel.producer, batch)
		n := rx.take(descs[:])
		tx.put(descs[:n])
		fill.put(addrs[:n])
		atomic.AddUint32(txKernel.consumer, batch)
		atomic.AddUint32(fillKernel.consumer, batch)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/batch, "ns/packet")
}
