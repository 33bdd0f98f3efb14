package addresspool

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// Of two Services that share an address the one that ends that gets another, whether the
// controller runs meanwhile or starts afterwards: the other keeps it, the older or not.
func TestWhoEndsTheSharingOfAnAddressLosesIt(t *testing.T) {
	for name, change := range map[string]func(s, other *Service){
		"another key":   func(s, _ *Service) { s.SharingKey = "other" },
		"no key":        func(s, _ *Service) { s.SharingKey = "" },
		"the same port": func(s, other *Service) { s.Ports = other.Ports },
		"a port range":  func(s, _ *Service) { s.Ports = []Port{{Protocol: "TCP", Port: 80, Last: 500}} },
		"Local policy":  func(s, _ *Service) { s.Endpoints = "x:app=web," },
	} {
		for _, restart := range []bool{false, true} {
			for _, older := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s, restart %v, by the older %v", name, restart, older), func(t *testing.T) {
					a := New(pools(t, poolObject("p", three)))
					changes, stays := service("x/changes", 2), service("y/stays", 1)
					if older {
						changes.Created, stays.Created = 1, 2
					}
					stays.Ports = []Port{{Protocol: "TCP", Port: 443}}
					for _, s := range []*Service{changes, stays} {
						s.SharingKey = "k"
						reconcile(t, a, s, ReasonAllocated, "192.0.2.1")
						s.Recorded = s.Terms(s.Status)
					}
					change(changes, stays)
					if restart {
						a = New(pools(t, poolObject("p", three)))
						if losers := slices.Concat(a.Adopt(changes, now), a.Adopt(stays, now)); !slices.Equal(losers, []string{changes.Name}) {
							t.Errorf("losers %v", losers)
						}
					}
					reconcile(t, a, stays, ReasonKept, "192.0.2.1")
					reconcile(t, a, changes, ReasonAllocated, "192.0.2.2")
				})
			}
		}
	}
}

// An address that somebody has written into the status of another Service, the oldest even, stays
// with the Service that it was given to.
func TestAnAddressWrittenByHandTakesNothing(t *testing.T) {
	for _, first := range []int{0, 1} {
		old, has := service("x/old", 1), service("x/has", 2)
		a := New(pools(t, poolObject("p", three)))
		reconcile(t, a, has, ReasonAllocated, "192.0.2.1")
		reconcile(t, a, old, ReasonAllocated, "192.0.2.2")
		old.Recorded, has.Recorded = old.Terms(old.Status), has.Terms(has.Status)
		old.Status = addrs("192.0.2.1")
		a = New(pools(t, poolObject("p", three)))
		order := []*Service{old, has}
		if losers := slices.Concat(a.Adopt(order[first], now), a.Adopt(order[1-first], now)); !slices.Equal(losers, []string{"x/old"}) {
			t.Errorf("losers %v", losers)
		}
		reconcile(t, a, has, ReasonKept, "192.0.2.1")
	}
}

// Terms are short, whatever a Service has, and still tell a change.
func TestTermsAreShort(t *testing.T) {
	s := service("x/a", 1)
	for i := range 5000 {
		s.Ports = append(s.Ports, Port{Protocol: "TCP", Port: uint16(i + 1)})
	}
	s.SharingKey = "k"
	addresses := addrs("192.0.2.1")
	before := s.Terms(addresses)
	if len(before) > 1024 || !strings.Contains(before, "192.0.2.1") {
		t.Errorf("%d characters: %.100s", len(before), before)
	}
	if s.Ports[4711].Port++; s.Terms(addresses) == before {
		t.Error("a change of a port makes no difference")
	}
}
