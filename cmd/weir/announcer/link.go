package announcer

import (
	"cmp"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/cmd/weir/config"
	"github.com/weirlb/weir/cmd/weir/event"
	"github.com/weirlb/weir/cmd/weir/problem"
	"github.com/weirlb/weir/lb/announce"
	"github.com/weirlb/weir/lb/announce/l2"
)

const (
	// reclaimFor is how long a node that may own an address takes back its own after the end of a drain:
	// until then they have settled.
	reclaimFor = 15 * time.Second
	// unansweredFor is how long no node may answer for an address before that is a problem: another takes over.
	unansweredFor = 10 * time.Second
	// rivalFor is how long another host that claims an address is a problem.
	rivalFor = 5 * time.Minute
)

// onlyRouters is why an announced address is not announced on links.
const onlyRouters = "neither announce.prefixes nor an L2Advertisement has it"

// links is the announcement on links. nil announces nothing.
type links struct {
	speaker *l2.Speaker
	key     bool
	events  *event.Ring
	ran     chan time.Time // of l2.Config.Ran
	// unanswered is since when no node answers for addresses; of Problems.
	unanswered map[netip.Addr]time.Time
}

// newLinks starts the announcement on links; nil where none is asked for.
func newLinks(cfg *config.Configuration, path packetPath, linger func() time.Duration, events *event.Ring, log *slog.Logger) (*links, error) {
	c := &cfg.Announce.L2
	if len(c.Interfaces) == 0 {
		return nil, nil
	}
	key, err := c.Key()
	if err != nil {
		return nil, fmt.Errorf("announce.l2.keyFile: %w", err)
	}
	k := &links{events: events, key: key != nil, ran: make(chan time.Time, 1)}
	k.speaker, err = l2.New(l2.Config{
		Node: cfg.NodeName, Interfaces: c.Interfaces, Key: key, Preempt: c.Preempt,
		Linger: linger, Local: path.Router().Local, Event: k.tell, Ran: k.linksRan, Log: log,
	})
	return k, err
}

func (k *links) linksRan() {
	select {
	case k.ran <- time.Time{}:
	default:
	}
}

func (k *links) close() {
	if k != nil {
		k.speaker.Close()
	}
}

// tell keeps a change of owners for weir events.
func (k *links) tell(e l2.Event) {
	var names []string
	for _, x := range e.Addresses {
		names = append(names, x.String())
	}
	out := event.New{Kind: event.AddressTaken, Severity: event.Note, Object: "Interface " + e.Interface}
	text := "took "
	switch e.Kind {
	case l2.GaveUp:
		out.Kind, text = event.AddressGivenUp, "gave up "
	case l2.TwoOwners:
		out.Kind, out.Severity, text = event.TwoOwners, event.Warning, "two owners heard: "
	}
	out.Identity = event.Some(names)
	out.Text = text + out.Identity
	if e.Why != "" {
		out.Text += ": " + e.Why
	}
	k.events.Add(out)
}

// set tells the links which addresses are announced. Where the packet path does not work they are
// given up at once.
func (k *links) set(n *announce.Node, rule *announce.Rule, decisions []announce.Decision) {
	if k == nil {
		return
	}
	var want []l2.Want
	why := map[netip.Addr]string{}
	for i := range decisions {
		d := &decisions[i]
		interfaces, on := rule.OnLink(d.Address)
		switch {
		case d.Reason != announce.Announced:
			why[d.Address] = reasonText(d)
		case !on:
			why[d.Address] = onlyRouters
		default:
			want = append(want, l2.Want{Address: d.Address, Interfaces: interfaces})
		}
	}
	k.speaker.Set(want, n.Unhealthy != "", func(x netip.Addr) string { return why[x] })
}

func reasonText(d *announce.Decision) string {
	if d.Detail == "" {
		return d.Reason.String()
	}
	return d.Reason.String() + ": " + d.Detail
}

// states are the states of addresses on links; of several of an address that of the owner.
func (k *links) states() map[netip.Addr]l2.AddressStatus {
	if k == nil {
		return nil
	}
	out := map[netip.Addr]l2.AddressStatus{}
	for _, s := range k.speaker.Addresses() {
		if before, is := out[s.Address]; !is || before.State != l2.Owner {
			out[s.Address] = s
		}
	}
	return out
}

// of is the state of an address. d is the decision about it, nil without frontends.
func (k *links) of(x netip.Addr, d *announce.Decision, states map[netip.Addr]l2.AddressStatus) *api.AnnouncedL2 {
	if k == nil {
		return nil
	}
	out := &api.AnnouncedL2{State: string(l2.Ineligible), Owner: k.speaker.OwnerOf(x)}
	switch s, is := states[x]; {
	case is:
		out.State, out.Since, out.Reason, out.Interface = string(s.State), s.Since, s.Reason, s.Interface
		out.Owner, out.Rival = cmp.Or(s.Owner, out.Owner), s.Rival
		if s.Rival != "" {
			out.RivalHeard = &s.RivalAt
		}
	case d == nil:
		out.Reason = "no frontend has this address"
	case d.Reason == announce.Announced:
		out.Reason, out.Since = "no interface of announce.l2.interfaces has a subnet with it", d.Since
	default:
		out.Reason, out.Since = reasonText(d), d.Since
	}
	return out
}

// status are the interfaces.
func (k *links) status() (out []api.AnnounceLink) {
	if k == nil {
		return nil
	}
	for _, s := range k.speaker.Links() {
		x := api.AnnounceLink{Interface: s.Interface, Carrier: s.Carrier, Key: k.key, Fault: s.Fault, Nodes: append([]string{}, s.Nodes...),
			Taken: s.Taken, GivenUp: s.GivenUp, Claimed: s.Claimed}
		for at, reason := range s.Unjoined {
			if x.Unjoined == nil {
				x.Unjoined = map[string]string{}
			}
			x.Unjoined[at.String()] = reason
		}
		out = append(out, x)
	}
	return out
}

// linkProblems are interfaces that cannot be used, nodes that cannot be joined, and addresses that
// another host claims.
func linkProblems(s *api.Announce, now time.Time) (out []problem.Problem) {
	for i := range s.L2 {
		l := &s.L2[i]
		add := func(reason string) {
			out = append(out, problem.Problem{Kind: problem.NotAnnounced, Object: "Interface " + l.Interface, Reason: reason})
		}
		switch {
		case l.Fault != "":
			add("nothing is announced on it: " + l.Fault)
		case !l.Carrier:
			add("nothing is announced on it: it has no carrier")
		}
		if hosts := slices.Sorted(maps.Keys(l.Unjoined)); len(hosts) > 0 { // hellos may be forged: one problem
			more := ""
			if n := len(hosts) - 1; n > 0 {
				more = fmt.Sprintf(" and %d more", n)
			}
			add(fmt.Sprintf("%s%s on the link cannot be joined, and may own the same address; is announce.l2.keyFile the same, and port %d open? %s",
				hosts[0], more, l2.Port, l.Unjoined[hosts[0]]))
		}
	}
	for i := range s.Addresses {
		if l := s.Addresses[i].L2; l != nil && l.RivalHeard != nil && now.Sub(*l.RivalHeard) < rivalFor {
			out = append(out, problem.Problem{
				Kind: problem.AddressClaimed, Object: "Address " + s.Addresses[i].Address.String(),
				Reason: fmt.Sprintf("%s claims it on %s", l.Rival, l.Interface),
			})
		}
	}
	return out
}
