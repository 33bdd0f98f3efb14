package addresspool

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// rest is the time in which a released address is given to no other Service, but to one of the
// namespace that had it, which asks for it by name.
type rest struct {
	until     time.Time
	namespace string
}

// rests notes that a Service has released addresses, and returns those that nobody has.
func (a *Allocator) rests(s *Service, released []netip.Addr, now time.Time) (free []netip.Addr) {
	for _, addr := range released {
		if len(a.given[addr]) == 0 {
			a.resting[addr] = rest{now.Add(RestTime), s.Namespace}
			free = append(free, addr)
		}
	}
	for addr, r := range a.resting {
		if !r.until.After(now) {
			delete(a.resting, addr)
		}
	}
	return free
}

// restsFor is the end of the rest for a Service that asks for the address, zero if it may have it.
func (a *Allocator) restsFor(addr netip.Addr, s *Service, now time.Time) time.Time {
	if r, ok := a.resting[addr]; ok && r.until.After(now) && r.namespace != s.Namespace {
		return r.until
	}
	return time.Time{}
}

// released is an address that rests, in the record for the next start.
type released struct {
	Address   netip.Addr `json:"address"`
	Namespace string     `json:"namespace"`
	Until     int64      `json:"until"` // Unix seconds
}

// maxRecord is how many addresses that rest are recorded: those whose rest ends last.
const maxRecord = 1000

// Rests is the record of the addresses that rest, "" for none.
func (a *Allocator) Rests(now time.Time) string {
	var out []released
	for addr, r := range a.resting {
		if r.until.After(now) {
			out = append(out, released{addr, r.namespace, r.until.Unix()})
		}
	}
	if out == nil {
		return ""
	}
	slices.SortFunc(out, func(x, y released) int { return cmp.Or(cmp.Compare(y.Until, x.Until), x.Address.Compare(y.Address)) })
	text, err := json.Marshal(out[:min(len(out), maxRecord)])
	if err != nil {
		return "" // cannot happen: all is text and numbers
	}
	return string(text)
}

// TakeRests takes over the record of another process. It precedes Adopt: an address that a Service
// has does not rest.
func (a *Allocator) TakeRests(record string, now time.Time) error {
	if record == "" {
		return nil
	}
	var in []released
	if err := json.Unmarshal([]byte(record), &in); err != nil {
		return fmt.Errorf("addresses that rest: %w", err)
	}
	for _, r := range in[:min(len(in), maxRecord)] {
		until := time.Unix(r.Until, 0)
		if r.Address.IsValid() && until.After(now) && !until.After(now.Add(RestTime)) {
			a.resting[r.Address.Unmap()] = rest{until, r.Namespace}
		}
	}
	return nil
}

// inUse says which Services have an address, and why the Service cannot share it. The names of other
// namespaces' Services are not told.
func (a *Allocator) inUse(addr netip.Addr, s *Service) string {
	var names, why []string
	for _, name := range a.given[addr] {
		o := a.services[name]
		if name == s.Name || s.shares(o) {
			continue
		}
		names, why = append(names, o.nameFor(s)), append(why, s.cannotShare(o))
	}
	slices.Sort(names)
	slices.Sort(why)
	return fmt.Sprintf("%s has: %s", strings.Join(slices.Compact(names), ", "), strings.Join(slices.Compact(why), "; "))
}

// nameFor is the name of a Service in a text for another.
func (s *Service) nameFor(reader *Service) string {
	if s.Namespace == reader.Namespace {
		return s.Name
	}
	return "a Service of another namespace"
}

const sharingKey = "annotation allow-shared-ip"

// cannotShare is the field by which two Services may not have the same address, "" if they may.
func (s *Service) cannotShare(o *Service) string {
	local := func(s *Service) string {
		if s.Endpoints != "" {
			return "Local"
		}
		return "Cluster"
	}
	switch {
	case o.Foreign:
		return "another controller serves it"
	case s.SharingKey == "":
		return sharingKey + ": this Service has none, so that it shares no address"
	case o.SharingKey == "":
		return sharingKey + ": the other has none, so that it shares no address"
	case s.SharingKey != o.SharingKey:
		return sharingKey + ": the other has another value"
	case local(s) != local(o):
		return fmt.Sprintf("spec.externalTrafficPolicy: is %s here and %s there", local(s), local(o))
	case s.Endpoints != o.Endpoints && s.Namespace != o.Namespace:
		return "spec.externalTrafficPolicy: is Local, and Services of two namespaces have no pods in common"
	case s.Endpoints != o.Endpoints:
		return "spec.selector: with externalTrafficPolicy Local both must have the same, and not be empty"
	}
	return s.samePorts(o)
}
