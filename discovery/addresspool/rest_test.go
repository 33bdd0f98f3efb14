package addresspool

import (
	"strings"
	"testing"
	"time"
)

// An address that rests goes by name to a Service of the namespace that had it, and to no other,
// whatever ended the claim, and after a restart with the record.
func TestAnAddressThatRestsIsForItsNamespace(t *testing.T) {
	for name, end := range map[string]func(a *Allocator, s *Service){
		"deleted":                       func(a *Allocator, s *Service) { a.Release(s.Name, now) },
		"asks for another address":      func(a *Allocator, s *Service) { s.Addresses = addrs("192.0.2.3"); a.Reconcile(s, now) },
		"served by another, no status":  func(a *Allocator, s *Service) { s.Status, s.Foreign = nil, true; a.Adopt(s, now) },
		"another address in its status": func(a *Allocator, s *Service) { s.Status = addrs("192.0.2.3"); a.Reconcile(s, now) },
	} {
		for _, restart := range []bool{false, true} {
			a := New(pools(t, poolObject("p", three)))
			web, camp := service("bank/web", 1), service("evil/camp", 2)
			reconcile(t, a, web, ReasonAllocated, "192.0.2.1")
			camp.Addresses = addrs("192.0.2.1")
			if out := reconcile(t, a, camp, ReasonAddressInUse); strings.Contains(out.Text, "bank") {
				t.Errorf("%s: the text names another namespace: %s", name, out.Text)
			}
			end(a, web)
			if restart {
				record := a.Rests(now)
				a = New(pools(t, poolObject("p", three)))
				if err := a.TakeRests(record, now); err != nil {
					t.Fatal(err)
				}
			}
			out := reconcile(t, a, camp, ReasonAddressInUse)
			if !out.Retry.Equal(now.Add(RestTime)) || !strings.Contains(out.Text, "rests until") {
				t.Errorf("%s: %+v", name, out)
			}
			again := service("bank/again", 3)
			again.Addresses = camp.Addresses
			reconcile(t, a, again, ReasonAllocated, "192.0.2.1")
			a.Release(again.Name, now)
			if out := a.Reconcile(camp, now.Add(RestTime)); out.Reason != ReasonAllocated {
				t.Errorf("%s: after the rest: %+v", name, out)
			}
		}
	}
}

// The text says which field keeps two Services from the same address.
func TestAddressInUseSaysWhy(t *testing.T) {
	with := func(name, key, endpoints string, port uint16) *Service {
		s := service(name, 1)
		s.SharingKey, s.Endpoints, s.Ports = key, endpoints, []Port{{Protocol: "TCP", Port: port}}
		return s
	}
	ranged := func(s *Service, last uint16) *Service {
		s.Ports[0].Last = last
		return s
	}
	for _, c := range []struct {
		want   string
		has, s *Service
	}{
		{"allow-shared-ip: this Service has none", with("x/a", "k", "", 80), with("x/b", "", "", 81)},
		{"allow-shared-ip: the other has none", with("x/a", "", "", 80), with("x/b", "k", "", 81)},
		{"allow-shared-ip: the other has another value", with("x/a", "k", "", 80), with("x/b", "l", "", 81)},
		{"spec.externalTrafficPolicy: is Local here and Cluster there", with("x/a", "k", "", 80), with("x/b", "k", "x:app=b,", 81)},
		{"spec.selector:", with("x/a", "k", "x:app=a,", 80), with("x/b", "k", "x:app=b,", 81)},
		{"two namespaces have no pods in common", with("y/a", "k", "y:app=a,", 80), with("x/b", "k", "x:app=a,", 81)},
		{"spec.ports: both have TCP 80", with("x/a", "k", "", 80), with("x/b", "k", "", 80)},
		{"annotation port-range: both have TCP 20057", ranged(with("y/a", "k", "", 20000), 20099), with("x/b", "k", "", 20057)},
		{"annotation port-range: both have TCP 20057", with("x/a", "k", "", 20057), ranged(with("x/b", "k", "", 20000), 20099)},
		{"both have TCP 20011-20099", ranged(with("y/a", "k", "", 20000), 20099), ranged(with("x/b", "k", "", 20011), 20500)},
		{"both have TCP 20099", ranged(with("y/a", "k", "", 20000), 20099), ranged(with("x/b", "k", "", 20099), 20500)},
	} {
		a := New(pools(t, poolObject("p", three)))
		reconcile(t, a, c.has, ReasonAllocated, "192.0.2.1")
		c.s.Addresses = addrs("192.0.2.1")
		out := reconcile(t, a, c.s, ReasonAddressInUse)
		named := strings.Contains(out.Text, c.has.Name)
		if !strings.Contains(out.Text, c.want) || named != (c.has.Namespace == c.s.Namespace) {
			t.Errorf("%q, want %q", out.Text, c.want)
		}
	}
}

// A record that somebody else has written makes no address rest for longer, and ends no process.
func FuzzTakeRests(f *testing.F) {
	f.Add(`[{"address":"192.0.2.1","namespace":"bank","until":1000000030}]`)
	f.Add(`[{"address":"","until":99999999999999}]`)
	f.Fuzz(func(t *testing.T, record string) {
		a := New(nil)
		_ = a.TakeRests(record, now)
		for addr, r := range a.resting {
			if !addr.IsValid() || r.until.Sub(now) > RestTime || r.until.Before(now) {
				t.Errorf("%v rests until %v", addr, r.until)
			}
		}
		if again := a.Rests(now.Add(time.Second)); len(again) > 1<<20+len(record) {
			t.Errorf("a record of %d bytes", len(again))
		}
	})
}
