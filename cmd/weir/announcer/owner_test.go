package announcer

import (
	"net/netip"
	"testing"

	"github.com/weirlb/weir/lb/announce"
	"github.com/weirlb/weir/lb/table"
)

// A Service of another namespace neither withdraws an address by spec.externalIPs, nor takes a
// port of it, nor is the address withdrawn when it leaves again.
func TestExternalIPsOfAnotherNamespaceWithdrawNothing(t *testing.T) {
	for name, port := range map[string]string{"another port": "203.0.113.1:81", "the same port": "203.0.113.1:80"} {
		for policy, onEmpty := range map[string]table.OnEmpty{"Cluster": table.Reject, "Local": table.Drop} {
			t.Run(policy+", "+name, func(t *testing.T) {
				s := &spoken{}
				a := startAnnouncer(s, nil, announce.Settings{Allow: []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24")}})
				a.ask(announce.Node{})
				tables := table.New(table.Config{Tick: func() uint32 { return 0 }})
				publish := func(put []table.Service, del ...string) {
					t.Helper()
					had := len(s.routes)
					if a.Leaving(put, del, tables); len(s.routes) != had {
						t.Errorf("before the publication: routes %v, %+v", s.routes, a.decisions)
					}
					if _, err := tables.Apply(put, del); err != nil {
						t.Fatal(err)
					}
					a.published(put, tables.Load(), func(k table.Key) bool { return k != table.MakeKey(netip.MustParseAddrPort("203.0.113.1:81"), 6) })
					if len(s.routes) != 1 {
						t.Errorf("routes %v, %+v", s.routes, a.decisions)
					}
				}
				web := webAt(2, "203.0.113.1")
				web.Created = 10
				publish([]table.Service{web})
				evil := table.Service{Name: "evil/local", Created: 1, Pools: []table.Pool{{OnEmpty: onEmpty}}}
				evil.Frontends = []table.Frontend{{AddrPort: netip.MustParseAddrPort(port), Proto: 6, Kind: table.ExternalIP}}
				publish([]table.Service{evil})
				publish([]table.Service{web})
				publish(nil, evil.Name)
			})
		}
	}
}
