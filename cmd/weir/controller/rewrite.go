package controller

import (
	"net/netip"
	"slices"
	"time"
)

// Another controller may remove the addresses that this one writes. Each write of both is an event
// for the other: the same addresses are written again ever more slowly.
const (
	firstRewrite  = time.Second
	lastRewrite   = time.Minute
	forgetRewrite = 10 * time.Minute
)

// rewrite is the last write of addresses into a Service's status.
type rewrite struct {
	addresses []netip.Addr
	at        time.Time
	again     int // how many times the same addresses had been removed
}

// rewriteIn is how long a write of the addresses must wait.
func (c *controller) rewriteIn(name string, addresses []netip.Addr) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	last := c.rewrites[name]
	if last.again == 0 || !slices.Equal(last.addresses, addresses) {
		return 0
	}
	wait := min(firstRewrite<<min(last.again-1, 10), lastRewrite)
	return time.Until(last.at.Add(wait))
}

// noteRewrite notes a write of addresses.
func (c *controller) noteRewrite(name string, addresses []netip.Addr) {
	c.mu.Lock()
	defer c.mu.Unlock()
	last, again := c.rewrites[name], 0
	if len(addresses) > 0 && slices.Equal(last.addresses, addresses) && time.Since(last.at) < forgetRewrite {
		again = last.again + 1
		c.log.Warn("the addresses were removed from a Service's status: does another controller serve it?", "service", name, "addresses", list(addresses))
	}
	c.rewrites[name] = rewrite{addresses, time.Now(), again}
}
