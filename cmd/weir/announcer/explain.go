package announcer

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/lb/announce"
	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/table"
)

// Explain explains whether and why an address is announced, but for the name of the node. shown is a
// frontend for the API.
func (a *Announcer) Explain(address netip.Addr, shown func(*table.FrontendEntry) api.Frontend) *api.AddressExplanation {
	a.Look()
	out, frontends := a.explain(address)
	published := a.path.Tables().Load()
	for _, f := range frontends {
		x := api.AddressFrontend{
			Service: f.Service, Address: f.at, Protocol: header.ProtocolName(f.proto), Programmed: f.Programmed,
			Endpoints: []api.FrontendEndpoint{},
		}
		if entry := published.Lookup(&f.key); f.Programmed && entry != nil {
			s := shown(entry)
			x.Mode, x.Endpoints, x.Choice = s.Mode, s.Endpoints, choiceText(choiceOf(entry))
		}
		out.Frontends = append(out.Frontends, x)
	}
	slices.SortFunc(out.Frontends, func(a, b api.AddressFrontend) int {
		return strings.Compare(a.Address+a.Protocol+a.Service, b.Address+b.Protocol+b.Service)
	})
	out.Choice, out.ChoosesByNode = choiceAmong(published, frontends)
	return out
}

// explain is the explanation without node and frontends, and the frontends that claim the
// address.
func (a *Announcer) explain(address netip.Addr) (*api.AddressExplanation, []announcedFrontend) {
	out := &api.AddressExplanation{
		Address: address, Conditions: []api.AddressCondition{}, Routes: []string{}, Peers: a.peers(), Frontends: []api.AddressFrontend{},
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, c := range a.rule.Explain(address, &a.node, a.addresses[address], time.Now()) {
		out.Conditions = append(out.Conditions, api.AddressCondition{Condition: c.String(), Met: c.Met, Detail: c.Detail})
		if !c.Met && out.Reason == "" {
			out.Reason, out.Detail = c.Reason.String(), c.Detail
		}
	}
	at := slices.IndexFunc(a.decisions, func(d announce.Decision) bool { return d.Address == address })
	if at >= 0 { // the decision is what routers are told
		d := a.decisions[at]
		out.Announced, out.Since, out.Reason, out.Detail = d.Reason == announce.Announced, &d.Since, "", d.Detail
		if !out.Announced {
			out.Reason = d.Reason.String()
		}
		out.L2 = a.links.of(address, &d, a.links.states())
	} else {
		out.L2 = a.links.of(address, nil, nil)
	}
	for _, r := range a.routes {
		if r.Prefix.Contains(address) {
			out.Routes = append(out.Routes, r.Prefix.String())
			if r.Limited {
				if out.LimitedTo == nil {
					out.LimitedTo = map[string][]string{}
				}
				out.LimitedTo[r.Prefix.String()] = slices.Sorted(maps.Keys(r.Peers))
			}
		}
	}
	var frontends []announcedFrontend
	for _, list := range a.services {
		for i := range list {
			if list[i].address == address && !list[i].held {
				frontends = append(frontends, list[i])
			}
		}
	}
	return out, frontends
}

// Status is what `weir status` shows, without choices: see AddChoices.
func (a *Announcer) Status() *api.Announce {
	if a == nil {
		return nil
	}
	out := &api.Announce{Speaker: a.name, Peers: a.peers(), Addresses: []api.AnnouncedAddress{}, Routes: []string{}}
	a.mu.Lock()
	defer a.mu.Unlock()
	out.Objects, out.MaxAddresses = a.objectStatus(), a.rule.MaxAddresses()
	states := a.links.states()
	out.L2 = a.links.status()
	for _, d := range a.decisions {
		x := api.AnnouncedAddress{Address: d.Address, Announced: d.Reason == announce.Announced, Detail: d.Detail, Since: d.Since}
		if !x.Announced {
			x.Reason = d.Reason.String()
		}
		for _, f := range a.addresses[d.Address] {
			x.Services = append(x.Services, f.Service)
		}
		slices.Sort(x.Services)
		x.Services = slices.Compact(x.Services)
		x.L2 = a.links.of(d.Address, &d, states)
		out.Addresses = append(out.Addresses, x)
	}
	for _, r := range a.routes {
		out.Routes = append(out.Routes, r.Prefix.String())
	}
	out.Held = a.rule.Held()
	return out
}

// peers are the routers, with their sessions.
func (a *Announcer) peers() []api.AnnouncePeer {
	out := []api.AnnouncePeer{}
	a.mu.Lock()
	speaker := a.speaker
	a.mu.Unlock()
	for _, p := range speaker.Peers() {
		peer := api.AnnouncePeer{Peer: p.Name, ASN: p.ASN, State: p.State, Established: p.Established, BFD: p.BFD, Routes: p.Routes, Ends: p.Ends, Reason: p.Reason}
		if !p.Since.IsZero() {
			peer.Since = &p.Since
		}
		out = append(out, peer)
	}
	return out
}

// AddChoices completes a status: which announced addresses have which choice.
func (a *Announcer) AddChoices(s *api.Announce) {
	if a == nil {
		return
	}
	frontends := map[netip.Addr][]announcedFrontend{}
	a.mu.Lock()
	for _, list := range a.services {
		for i := range list {
			if !list[i].held {
				frontends[list[i].address] = append(frontends[list[i].address], list[i])
			}
		}
	}
	a.mu.Unlock()
	published := a.path.Tables().Load()
	for i := range s.Addresses {
		x := &s.Addresses[i]
		x.Choice, x.ChoosesByNode = choiceAmong(published, frontends[x.Address])
	}
}

// choiceAmong is a hash of programmed frontends, whose order does not matter, and whether one of
// them chooses by node. "" without any.
func choiceAmong(published *table.Snapshot, frontends []announcedFrontend) (hash string, byNode bool) {
	var sum uint64
	for i := range frontends {
		entry := published.Lookup(&frontends[i].key)
		if entry == nil || !frontends[i].Programmed {
			continue
		}
		sum += choiceOf(entry)
		hash, byNode = choiceText(sum), byNode || entry.Pool.ChoosesByNode()
	}
	return hash, byNode
}

// choiceOf is a hash of a frontend and of how it chooses.
func choiceOf(f *table.FrontendEntry) uint64 {
	return f.Pool.ChoiceHash() ^ (f.Key.W2<<8|uint64(f.Mode))*0x9e3779b97f4a7c15
}

func choiceText(hash uint64) string { return fmt.Sprintf("%016x", hash) }
