package announcer

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/weirlb/weir/lb/announce"
	"github.com/weirlb/weir/lb/table"
)

// Over 1,000 random changes of Services no address is announced whose packets nothing serves:
// before a publication, by the tables of before and of after, and after it.
func TestNoUnservedAddressIsAnnouncedOverRandomChanges(t *testing.T) {
	random := rand.New(rand.NewPCG(7, 18))
	s := &spoken{}
	a := startAnnouncer(s, nil, announce.Settings{Allow: []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24")}})
	a.ask(announce.Node{})
	tables := table.New(table.Config{Tick: func() uint32 { return 0 }})
	steered := map[table.Key]bool{}
	announced := 0
	check := func(change int, when string, now, other *table.Snapshot) {
		t.Helper()
		for _, r := range s.routes {
			announced++
			if why := unservedBy(now, other, r.Prefix.Addr(), steered); why != "" {
				t.Fatalf("change %d, %s: %v is announced: %s\n%+v\n%+v", change, when, r.Prefix, why, a.decisions, a.services)
			}
		}
	}
	for change := range 1000 {
		var put []table.Service
		var del []string
		for _, i := range random.Perm(6)[:1+random.IntN(3)] {
			name := fmt.Sprint("test/", i)
			if random.IntN(5) == 0 {
				del = append(del, name)
			} else {
				put = append(put, randomService(random, name))
			}
		}
		before := tables.Load()
		_, _, _ = a.Leaving(put, del, tables)
		check(change, "before the publication", before, before)
		if _, err := tables.Apply(put, del); err != nil {
			t.Fatal(err)
		}
		check(change, "after the publication", tables.Load(), before)
		for port := range 3 {
			for host := range 4 {
				k := keyOf(host, port)
				steered[k] = random.IntN(20) > 0
			}
		}
		a.published(put, tables.Load(), func(k table.Key) bool { return steered[k] })
		check(change, "at the end", tables.Load(), tables.Load())
	}
	if announced < 1000 {
		t.Errorf("%d announcements were looked at", announced)
	}
}

func keyOf(host, port int) table.Key {
	return table.MakeKey(netip.AddrPortFrom(netip.AddrFrom4([4]byte{203, 0, 113, byte(host)}), uint16(80+port)), 6)
}

// randomService has up to three frontends and up to two endpoints, by Cluster or Local policy.
func randomService(random *rand.Rand, name string) table.Service {
	s := table.Service{Name: name, Pools: []table.Pool{{}}}
	if random.IntN(2) == 0 {
		s.Pools[0].OnEmpty = table.Drop
	}
	for i := range random.IntN(3) {
		s.Pools[0].Endpoints = append(s.Pools[0].Endpoints, table.Endpoint{AddrPort: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)}), 80)})
	}
	for _, host := range random.Perm(4)[:random.IntN(4)] {
		at := netip.AddrPortFrom(netip.AddrFrom4([4]byte{203, 0, 113, byte(host)}), uint16(80+random.IntN(3)))
		s.Frontends = append(s.Frontends, table.Frontend{AddrPort: at, Proto: 6, Kind: table.LoadBalancer})
	}
	return s
}

// unservedBy says why the tables do not serve an address: no frontend has an endpoint, or some
// frontend that is in the other tables too drops packets. A port that comes or goes has no clients.
func unservedBy(now, other *table.Snapshot, a netip.Addr, steered map[table.Key]bool) string {
	served := false
	for port := range 3 {
		k := keyOf(int(a.As4()[3]), port)
		f := now.Lookup(&k)
		switch {
		case f == nil, other.Lookup(&k) == nil:
		case f.Pool.Len() > 0:
			served = true
		case f.Pool.OnEmpty() == table.Drop:
			return fmt.Sprintf("port %d has no endpoint here", 80+port)
		}
		if known, ok := steered[k]; f != nil && other.Lookup(&k) != nil && ok && !known {
			return fmt.Sprintf("port %d is not steered", 80+port)
		}
	}
	if !served {
		return "no endpoint"
	}
	return ""
}
