package e2e

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Clients of a prefix that flood get flood.newConnectionsPerPrefix and no more, honest clients
// of another prefix succeed, and so they do when the flood claims to be from all prefixes. The
// limit is switched on by a reload.
func TestWirePrefixFlood(t *testing.T) {
	const rate, flooded = 100, 2000
	f := ownFixture(t, options{services: []service{toAll}})
	limited := f.config() + fmt.Sprintf("flood: {newConnectionsPerPrefix: %d}\n", rate)
	replace(t, f.path("config.yaml"), []byte(limited))
	must(t, f.weir.Signal(syscall.SIGHUP))
	must(t, f.poll(func(context.Context) error {
		if !strings.Contains(f.logTail(), "msg=reloaded") {
			return errors.New("no reload")
		}
		return nil
	}))
	bothFamilies(t, func(t *testing.T, six bool) {
		for _, c := range []struct {
			name string
			from func(*rand.Rand, bool) netip.Addr
			one  bool
		}{{"a prefix", sourceOfAPrefix, true}, {"all prefixes", sourceOfAnyPrefix, false}} {
			t.Run(c.name, func(t *testing.T) {
				h := newHonest(t, f, six)
				ctx, stop := context.WithCancel(t.Context())
				var running sync.WaitGroup
				defer running.Wait()
				defer stop()
				h.run(ctx, &running)
				saidBy(t, h.talks, 2)
				flood := newSYNFlood(t, f, toAll.at(echoPort, six), flooded)
				flood.from = c.from
				flows, refused := f.newFlows(t), f.prefixRefused(t)
				begun := time.Now()
				flooding, end := context.WithCancel(ctx)
				running.Go(func() { flood.run(flooding) })
				h.during(t, time.Duration(floodSeconds)*time.Second/2)
				end()
				took := time.Since(begun)
				flows, refused = f.newFlows(t)-flows, f.prefixRefused(t)-refused
				stop()
				running.Wait()
				must(t, flood.err)

				sent := flood.sent.Load()
				t.Logf("%d SYNs in %v: %d flows, %d refused; %d honest connections, %d failed",
					sent, took.Round(time.Millisecond), flows, refused, h.fresh.made, len(h.fresh.failed))
				if most := int64(rate*(took.Seconds()+1)) + int64(h.fresh.made); c.one && flows > most {
					t.Errorf("%d flows, more than %d", flows, most)
				}
				if c.one && refused < uint64(sent)/2 || !c.one && refused > uint64(sent)/20 {
					t.Errorf("%d of %d SYNs refused", refused, sent)
				}
				if failed := len(h.fresh.failed); failed*20 > h.fresh.made {
					t.Errorf("%d of %d honest connections failed, such as: %v", failed, h.fresh.made, h.fresh.failed[0])
				}
				for _, k := range h.talks {
					if k.err != nil {
						t.Errorf("established connection %s: %v", k.name, k.err)
					}
				}
			})
		}
	})
	out, err := f.command("drops", "--admin-socket", f.path("weir.sock")).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "prefix-rate") || !strings.Contains(string(out), "2001:db8:7700:") {
		t.Errorf("weir drops: %v\n%s", err, out)
	}
}

// prefixRefused is the number of connections that were refused for their prefix.
func (f *fixture) prefixRefused(t *testing.T) uint64 {
	t.Helper()
	s, err := f.admin.Status(inTime(t, within))
	must(t, err)
	return uint64(s.Drops["prefix-rate"])
}

// sourceOfAPrefix is an address of 44.7.7.0/24, or of 2001:db8:7700::/56.
func sourceOfAPrefix(rng *rand.Rand, six bool) netip.Addr {
	if !six {
		return netip.AddrFrom4([4]byte{44, 7, 7, byte(rng.Uint32())})
	}
	a := [16]byte{0x20, 0x01, 0x0d, 0xb8, 0x77, 0, 0, byte(rng.Uint32())}
	binary.BigEndian.PutUint64(a[8:], rng.Uint64())
	return netip.AddrFrom16(a)
}

// sourceOfAnyPrefix is an address of 44.0.0.0/8, or of 2a00::/16.
func sourceOfAnyPrefix(rng *rand.Rand, six bool) netip.Addr {
	if !six {
		return forgedSource(rng, false)
	}
	var a [16]byte
	binary.BigEndian.PutUint64(a[:], rng.Uint64())
	binary.BigEndian.PutUint64(a[8:], rng.Uint64())
	a[0], a[1] = 0x2a, 0
	return netip.AddrFrom16(a)
}
