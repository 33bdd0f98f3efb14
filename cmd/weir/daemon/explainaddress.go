package daemon

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/lb/announce"
	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/table"
)

// ExplainAddress implements api.Source.
func (d *Daemon) ExplainAddress(_ context.Context, address netip.Addr) (*api.AddressExplanation, error) {
	if d.announcer == nil {
		return nil, fmt.Errorf("%w: nothing is announced to routers: announce.speaker is off", api.ErrNotFound)
	}
	d.lookAnnounce()
	out, frontends := d.announcer.explain(address)
	d.mu.Lock()
	out.Node = d.node.Node.Name
	d.mu.Unlock()
	published := d.lb.Tables().Load()
	for _, f := range frontends {
		x := api.AddressFrontend{
			Service: f.Service, Address: f.at.String(), Protocol: header.ProtocolName(f.proto), Programmed: f.Programmed,
			Endpoints: []api.FrontendEndpoint{},
		}
		if entry := published.Lookup(&f.key); f.Programmed && entry != nil {
			shown := d.frontend(entry)
			x.Mode, x.Endpoints, x.Choice = shown.Mode, shown.Endpoints, choiceText(choiceOf(entry))
		}
		out.Frontends = append(out.Frontends, x)
	}
	slices.SortFunc(out.Frontends, func(a, b api.AddressFrontend) int {
		return strings.Compare(a.Address+a.Protocol+a.Service, b.Address+b.Protocol+b.Service)
	})
	out.Choice, out.ChoosesByNode = choiceAmong(published, frontends)
	return out, nil
}

// explain is the explanation without node and frontends, and the frontends that claim the
// address.
func (a *announcer) explain(address netip.Addr) (*api.AddressExplanation, []announcedFrontend) {
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
	}
	for _, r := range a.routes {
		if r.Prefix.Contains(address) {
			out.Routes = append(out.Routes, r.Prefix.String())
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

// addChoices completes a status: which announced addresses have which choice.
func (a *announcer) addChoices(s *api.Announce) {
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
	published := a.lb.Tables().Load()
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
	k := table.MakeKey(f.AddrPort, f.Proto)
	return f.Pool.ChoiceHash() ^ (k.W2<<8|uint64(f.Mode))*0x9e3779b97f4a7c15
}

func choiceText(hash uint64) string { return fmt.Sprintf("%016x", hash) }
