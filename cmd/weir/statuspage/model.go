package statuspage

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/cmd/weir/event"
	"github.com/weirlb/weir/cmd/weir/problem"
	"github.com/weirlb/weir/cmd/weir/view"
)

// Bounds of a page.
const (
	perPage        = 50
	maxProblems    = 20
	maxDrops       = 12
	maxSquares     = 48   // endpoints of a Service in the list
	maxEndpoints   = 1000 // endpoints of a Service on its own page
	maxQuery       = 100
	refreshSeconds = 2
)

// content is all that the template shows.
type content struct {
	Title, Node, Version, Time, Uptime string
	Refresh                            int
	Healthy                            bool
	State                              string // of the node, in a word
	Why                                string // unless Healthy
	Facts                              []fact
	Charts                             []chart
	Problems                           []problemRow
	MoreProblems                       int
	Workers                            []workerRow
	Interfaces                         []interfaceRow
	Drops                              []countRow
	Events                             []eventRow
	Announce                           string // the last event of importance, for screen readers
	List                               *listView
	Service                            *serviceView
}

type fact struct{ Name, Value, Note string }

// chart is a line; Start is the abscissa of the first point.
type chart struct{ Name, Value, Line, Start, Label string }

type problemRow struct{ Severity, Object, Reason, Since string }

type workerRow struct {
	ID, CPU, Busy, Average string
	BusyPercent            int
	Packets, Dropped       string
}

type interfaceRow struct{ Name, Mode, Hook, Driver, Queues, State string }

type countRow struct{ Name, Count string }

type eventRow struct{ Time, Exact, Kind, Severity, Subject, Service, Text, Times string }

// listView is the list of Services.
type listView struct {
	Query, Sort    string
	Total, Matched int
	Page, Pages    int
	First, Last    int
	Previous, Next string
	Columns        []column
	Rows           []serviceRow
}

type column struct {
	Name, Link string
	Sorted     bool
	Number     bool
}

// serviceRow is a Service of the list.
type serviceRow struct {
	Name, Link       string
	Ports            []portRow
	Open             string
	NewRate, Packets string
	Chart            chart
	Drops, DropsNote string
	Zones            []zone
	ZonesText        string
	MoreEndpoints    int
	Unhealthy        string // endpoints that fail or are ejected
}

type portRow struct {
	Name, Endpoints string
	Tiers           []tierRow
}

type tierRow struct{ Tier, Scope, Since, Previous, Endpoints string }

// zone is a zone with nodes, zoneNode a node with endpoints.
type zone struct {
	Name      string
	Text      string
	Nodes     []zoneNode
	Endpoints []endpoint // of all nodes
}

type zoneNode struct {
	Name      string
	This      bool
	Endpoints []endpoint
}

type endpoint struct {
	Address, Ports, Node, Zone, State, Policy, Used, Reason string
	Health                                                  string
	Takes                                                   bool // new flows
	Open, Refused, Unanswered                               string
	open                                                    uint32
	refused, unanswered                                     uint64
}

type serviceView struct {
	serviceRow
	Facts     []fact
	Charts    []chart
	Endpoints []endpoint
	More      int
	Policy    string // for clients from outside
}

// nodeView fills the part that all pages have.
func nodeView(s *sample) *content {
	st := s.status
	v := &content{
		Node: st.Node, Version: st.Version, Time: s.at.UTC().Format("2006-01-02 15:04:05 UTC"), Refresh: refreshSeconds,
		Uptime: view.Age(time.Duration(st.UptimeSeconds * float64(time.Second))), Healthy: true, State: "healthy",
	}
	switch c, why := st.Condition(); c {
	case api.Unhealthy:
		v.State, v.Healthy, v.Why = "not healthy", false, st.Unhealthy
	case api.Draining:
		v.State, v.Healthy, v.Why = "draining", false, why
	case api.Starting:
		v.State = "starting"
	}
	v.Facts = []fact{
		{"Services", number(uint64(st.Services)), ""},
		{"Frontends", number(uint64(st.Frontends)), fmt.Sprintf("hash %08x", st.FrontendsHash)},
		{"Endpoints", number(uint64(st.Endpoints)), ""},
		{"Connections", number(st.Flows.Current), "of " + view.Short(float64(st.Flows.Max))},
		{"Source", st.Discovery.Source, fmt.Sprintf("changed %s ago", view.Age(s.at.Sub(st.LastUpdated)))},
	}
	n := &s.node
	v.Charts = []chart{
		newChart("Packets received", n.rate.Packets, "/s", &n.packetChart),
		newChart("New connections", n.rate.Flows, "/s", &n.flowChart),
		newChart("Drops", n.rate.Drops, "/s", &n.dropChart),
	}
	for _, p := range st.Problems[:min(len(st.Problems), maxProblems)] {
		reason := p.Reason
		if p.Field != "" {
			reason = p.Field + ": " + reason
		}
		v.Problems = append(v.Problems, problemRow{string(p.Severity), p.Object, reason, view.Age(s.at.Sub(p.Since))})
	}
	v.MoreProblems = len(st.Problems) + st.ProblemsLeftOut - len(v.Problems)
	for i := range st.Workers {
		v.Workers = append(v.Workers, newWorker(&st.Workers[i], &n.workers[i]))
	}
	v.addInterfaces(st)
	v.addDrops(st.Drops)
	v.addEvents(s.events, s.at)
	return v
}

func newWorker(w *api.Worker, rate *workerRate) workerRow {
	r := workerRow{
		ID: strconv.Itoa(w.ID), CPU: strconv.Itoa(w.CPU), BusyPercent: int(rate.busy*100 + 0.5),
		Average: fmt.Sprintf("%.0f %%", 100*w.BusyShare),
		Packets: rateText(rate.packets), Dropped: view.Short(float64(api.Sum(w.Drops))),
	}
	r.Busy = fmt.Sprintf("%d %%", r.BusyPercent)
	if w.CPU < 0 {
		r.CPU = "any"
	}
	return r
}

func (v *content) addInterfaces(st *api.Status) {
	for _, i := range st.Interfaces {
		state := "attached"
		if i.Inactive {
			state = "inactive member"
		}
		v.Interfaces = append(v.Interfaces, interfaceRow{i.Name, i.Mode, i.Hook, i.Driver, fmt.Sprintf("%d / %d", i.BoundQueues, i.Queues), state})
	}
	for _, a := range st.Absent {
		v.Interfaces = append(v.Interfaces, interfaceRow{Name: a.Name, State: "absent: " + a.Reason})
	}
}

func (v *content) addDrops(drops map[string]uint64) {
	for reason, n := range drops {
		if n > 0 {
			v.Drops = append(v.Drops, countRow{reason, strconv.FormatUint(n, 10)})
		}
	}
	slices.SortFunc(v.Drops, func(a, b countRow) int {
		return cmp.Or(cmp.Compare(drops[b.Name], drops[a.Name]), strings.Compare(a.Name, b.Name))
	})
	v.Drops = v.Drops[:min(len(v.Drops), maxDrops)]
}

func (v *content) addEvents(list []event.Event, now time.Time) {
	for i := range slices.Backward(list) {
		e := &list[i]
		r := eventRow{
			Time: view.Age(now.Sub(e.Last)) + " ago", Exact: e.Last.UTC().Format(time.RFC3339), Kind: string(e.Kind),
			Severity: string(e.Severity), Subject: cmp.Or(e.Service, e.Object, "Weir"), Text: e.Text,
		}
		if e.Service != "" {
			r.Service = link(e.Service)
		}
		if e.Count > 1 {
			r.Times = fmt.Sprintf("%d times in %s", e.Count, view.Age(e.Last.Sub(e.First)))
		}
		v.Events = append(v.Events, r)
		if v.Announce == "" && (e.Kind == event.TierChanged || e.Severity != event.Note) {
			v.Announce = fmt.Sprintf("%s %s: %s", e.Last.UTC().Format("15:04:05"), r.Subject, e.Text)
		}
	}
}

func link(service string) string { return "/service?" + url.Values{"name": {service}}.Encode() }

// of selects the problems and events of a Service.
func (v *content) of(service string) {
	v.Problems = slices.DeleteFunc(v.Problems, func(p problemRow) bool {
		namespace, name, ok := problem.ServiceOf(p.Object)
		return !ok || namespace+"/"+name != service
	})
	v.MoreProblems = 0
	v.Events = slices.DeleteFunc(v.Events, func(e eventRow) bool { return e.Subject != service })
}

// listOf is the page of the list that a request asks for.
func listOf(s *sample, r *http.Request) *listView {
	l := &listView{Query: r.FormValue("q"), Sort: r.FormValue("sort"), Total: len(s.services)}
	if len(l.Query) > maxQuery {
		l.Query = strings.ToValidUTF8(l.Query[:maxQuery], "")
	}
	var found []*service
	words := strings.Fields(strings.ToLower(l.Query))
	for _, svc := range s.services {
		if svc.matches(words) {
			found = append(found, svc)
		}
	}
	l.sort(found)
	l.Matched, l.Pages = len(found), max(1, (len(found)+perPage-1)/perPage)
	l.Page, _ = strconv.Atoi(r.FormValue("page"))
	l.Page = min(max(l.Page, 1), l.Pages)
	from := (l.Page - 1) * perPage
	found = found[from:min(from+perPage, len(found))]
	l.First, l.Last = from+min(1, len(found)), from+len(found)
	if l.Page > 1 {
		l.Previous = l.link(l.Sort, l.Page-1)
	}
	if l.Page < l.Pages {
		l.Next = l.link(l.Sort, l.Page+1)
	}
	for _, svc := range found {
		l.Rows = append(l.Rows, newRow(svc, s.at))
	}
	for _, c := range []column{
		{Name: "Service", Link: "name"}, {Name: "Port and tier in use"}, {Name: "Endpoints by zone"}, {Name: "Open", Link: "open", Number: true},
		{Name: "New/s", Link: "new", Number: true}, {Name: "Packets/s", Link: "packets", Number: true}, {Name: "Last 5 min"}, {Name: "Drops", Link: "drops", Number: true},
	} {
		if c.Link != "" {
			c.Sorted = c.Link == cmp.Or(l.Sort, "name")
			c.Link = l.link(c.Link, 1)
		}
		l.Columns = append(l.Columns, c)
	}
	return l
}

// link is a page of the same search.
func (l *listView) link(sort string, page int) string {
	v := url.Values{}
	if l.Query != "" {
		v.Set("q", l.Query)
	}
	if sort != "" && sort != "name" {
		v.Set("sort", sort)
	}
	if page > 1 {
		v.Set("page", strconv.Itoa(page))
	}
	return "/?" + v.Encode()
}

// sort orders by the column, the largest first, and by name.
func (l *listView) sort(list []*service) {
	by := map[string]func(*service) float64{
		"open": func(s *service) float64 { return float64(s.open) }, "new": func(s *service) float64 { return s.rate.Flows },
		"packets": func(s *service) float64 { return s.rate.Packets }, "drops": func(s *service) float64 { return float64(s.Totals.Drops) },
	}[l.Sort]
	if by == nil {
		l.Sort = ""
		return
	}
	slices.SortStableFunc(list, func(a, b *service) int { return cmp.Compare(by(b), by(a)) })
}

// matches reports whether name, ports, tiers or protocols have all the words.
func (s *service) matches(words []string) bool {
	if len(words) == 0 {
		return true
	}
	text := strings.ToLower(s.name)
	for i := range s.ports {
		p := &s.ports[i]
		text += fmt.Sprintf(" %s %d/%s %d", strings.ToLower(p.Name), p.Port, strings.ToLower(p.Protocol), p.NodePort)
		for _, t := range p.Tiers {
			text += " " + t.Tier
		}
	}
	return !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(text, w) })
}

// endpointsOf asks for the endpoints of a Service. A Service that has just gone has none.
func (p *Page) endpointsOf(ctx context.Context, service string) (list []endpoint, more int, err error) {
	byKey := map[string]int{}
	err = p.sampler.client.EachEndpoint(ctx, service, func(a *api.EndpointState) error {
		host := a.Address
		if i := strings.LastIndexByte(host, ':'); i > 0 {
			host = host[:i]
		}
		key := host + " " + a.State
		at, known := byKey[key]
		switch {
		case known:
		case len(list) == maxEndpoints:
			more++
			return nil
		default:
			at = len(list)
			byKey[key] = at
			list = append(list, endpoint{Address: strings.Trim(host, "[]"), Node: a.Node, Zone: a.Zone, State: a.State})
		}
		e := &list[at]
		e.add(a)
		return nil
	})
	if errors.Is(err, api.ErrNotFound) {
		err = nil
	}
	return list, more, err
}

// add adds a port of the endpoint.
func (e *endpoint) add(a *api.EndpointState) {
	if !strings.Contains(", "+e.Ports+", ", ", "+a.Port+", ") {
		e.Ports = strings.TrimPrefix(e.Ports+", "+a.Port, ", ")
	}
	e.open += a.Open
	e.Open = number(uint64(e.open))
	e.refused, e.unanswered = e.refused+a.Attempts.Refused, e.unanswered+a.Attempts.Unanswered
	e.Refused, e.Unanswered = number(e.refused), number(e.unanswered)
	e.Policy = a.Policy
	if e.Reason == "" || a.Health.Worse(e.Health) { // of the port that is worst off
		e.Health, e.Reason = a.Health.State, a.Reason
	}
	switch {
	case a.Used:
		e.Used, e.Takes = "yes", true
	case e.Used == "":
		e.Used = "no"
	}
}
