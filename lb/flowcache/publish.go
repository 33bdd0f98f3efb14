package flowcache

import (
	"fmt"
	"math"
	"os"
	"strings"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/conntrack"
)

// SetOn lets the program forward packets, or send every packet up.
func (c *Cache) SetOn(on bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.on = on
	c.storeFrom()
}

// Suspend sends every packet up until as many calls of Resume, or until nobody calls Renew any
// more. What the program has begun meanwhile it ends within microseconds.
func (c *Cache) Suspend() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.suspended++
	c.storeFrom()
}

// Resume ends a Suspend.
func (c *Cache) Resume() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.suspended--
	c.storeFrom()
}

// Leave ends what only a process that lives can want: a Suspend of a capture that has not ended.
func (c *Cache) Leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.suspended = math.MinInt / 2 // with Resume to come
	c.storeFrom()
}

// Renew moves the end of a Suspend on. It is called several times in suspendedFor.
func (c *Cache) Renew() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.storeFrom()
}

// suspendedFor is how long a Suspend outlives the process.
const suspendedFor = 500 * time.Millisecond

func (c *Cache) storeFrom() {
	from := uint64(0)
	switch {
	case c.on && c.suspended > 0:
		if now, err := monotonic(); err == nil { // else at no time
			from = uint64(now + suspendedFor.Nanoseconds())
		}
	case c.on:
		from = 1
	}
	atomic.StoreUint64(&c.state.From, from)
}

// SetPort says where packets to a port leave. Packets go up until the call, and after a call
// with the zero Port.
func (c *Cache) SetPort(port int, p Port) error {
	if port < 0 || port >= MaxPorts {
		return fmt.Errorf("flow cache: port %d: there are %d", port, MaxPorts)
	}
	atomic.StoreUint64((*uint64)(unsafe.Pointer(&c.state.Ports[port])), *(*uint64)(unsafe.Pointer(&p)))
	return nil
}

// SetUp says to which interface a TCX program redirects packets of a slot that are for the
// packet loop.
func (c *Cache) SetUp(slot int, ifindex uint32) error {
	if slot < 0 || slot >= MaxPorts {
		return fmt.Errorf("flow cache: slot %d: there are %d", slot, MaxPorts)
	}
	atomic.StoreUint32(&c.state.Slots[slot].Up, ifindex)
	return nil
}

// SetEndpointRemoved sends the packets of an endpoint's flows up, or ends that. The caller does
// so before it publishes that the endpoint is gone.
func (c *Cache) SetEndpointRemoved(number uint32, gone bool) {
	c.setGone(0, uint32(c.cfg.Endpoints), number, gone)
}

// SetServiceRemoved is SetEndpointRemoved for all flows of a Service: a frontend of it is to leave.
func (c *Cache) SetServiceRemoved(number uint32, gone bool) {
	c.setGone(c.firstService, uint32(c.cfg.Services), number, gone)
}

// setGone changes the bit of a number. The program reads Exceptions first: it is not 0 from
// before the first bit is set until after the last is cleared.
func (c *Cache) setGone(first, count, number uint32, gone bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if number >= count {
		if gone && number != conntrack.NoID { // there is no bit for it
			c.on = false
			c.storeFrom()
		}
		return
	}
	word, bit := &c.goneWords[first+number/64], uint64(1)<<(number%64)
	if atomic.LoadUint64(word)&bit != 0 == gone {
		return
	}
	if gone {
		c.numGone++
		atomic.StoreUint32(&c.state.Exceptions, c.numGone)
		atomic.OrUint64(word, bit)
		return
	}
	atomic.AndUint64(word, ^bit)
	c.numGone--
	atomic.StoreUint32(&c.state.Exceptions, c.numGone)
}

// Repeated returns the packets of a slot that the program has forwarded.
func (c *Cache) Repeated(slot int) (sum Repeated, err error) {
	var perCPU []Repeated
	if err := c.repeated.Lookup(uint32(slot), &perCPU); err != nil {
		return sum, fmt.Errorf("flow cache: read slot %d: %w", slot, err)
	}
	for _, r := range perCPU {
		sum.Packets += r.Packets
		sum.Bytes += r.Bytes
	}
	return sum, nil
}

func monotonic() (int64, error) {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return 0, fmt.Errorf("read CLOCK_MONOTONIC: %w", err)
	}
	return ts.Nano(), nil
}

// checkClock checks that the program's CLOCK_MONOTONIC is this process's: in a time namespace
// it may not be.
func checkClock() error {
	b, err := os.ReadFile("/proc/self/timens_offsets") // since Linux 5.6
	if err != nil {
		return nil
	}
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) == 3 && (f[0] == "monotonic" || f[0] == "1") && (f[1] != "0" || f[2] != "0") {
			return fmt.Errorf("the process is in a time namespace %s s away", f[1])
		}
	}
	return nil
}
