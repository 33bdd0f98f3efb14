package api

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/weirlb/weir/cmd/weir/event"
)

// EventList is the answer to /v1/events.
type EventList struct {
	// Last is the number of the last event of all, for after of the next request. It is lower
	// than before when another process answers.
	Last   uint64        `json:"last"`
	Events []event.Event `json:"events"` // by number
}

// EventFilter selects events. The zero value selects all.
type EventFilter struct {
	Kind    string        // "": any
	Service string        // namespace/name; "": any
	Since   time.Duration // ago; 0: any
	After   uint64        // the number of an event: those that occurred later
	Limit   int           // the last so many; 0: all
}

// eventRoutes are those about events.
func eventRoutes(src Source) []route {
	var kinds []string
	for _, k := range event.Kinds {
		kinds = append(kinds, string(k.Kind))
	}
	return []route{{
		method: "GET", path: "/v1/events", summary: "The last changes that an operator asks about.", answer: EventList{},
		params: []param{
			{name: "kind", enum: kinds, usage: "a kind of events"},
			{name: "service", usage: "namespace/name"},
			{name: "since", usage: "a duration, as 10m: events that occurred within it"},
			{name: "after", kind: "integer", usage: "events with a higher number"},
			{name: "limit", kind: "integer", usage: fmt.Sprintf("the last so many; absent: all, at most %d", event.Size)},
		},
		handle: func(w http.ResponseWriter, r *http.Request) {
			f, err := eventFilter(r)
			if err != nil {
				refuse(w, http.StatusBadRequest, err)
				return
			}
			l := &EventList{}
			l.Events, l.Last, err = src.Events(f)
			reply(w, l, err)
		},
	}}
}

// eventFilter reads the parameters of a request.
func eventFilter(r *http.Request) (f *event.Filter, err error) {
	f = &event.Filter{Kind: event.Kind(r.FormValue("kind")), Service: r.FormValue("service")}
	if f.Kind != "" && !event.Known(f.Kind) {
		return nil, fmt.Errorf("kind: no events are of kind %q", f.Kind)
	}
	if s := r.FormValue("since"); s != "" {
		d, err := time.ParseDuration(s)
		if err != nil || d < 0 {
			return nil, fmt.Errorf("since: expected a duration such as 10m, got %q", s)
		}
		f.Since = time.Now().Add(-d)
	}
	if s := r.FormValue("after"); s != "" {
		if f.After, err = strconv.ParseUint(s, 10, 64); err != nil {
			return nil, fmt.Errorf("after: expected a number, got %q", s)
		}
	}
	f.Limit, err = number(r, "limit", event.Size, event.Size)
	return f, err
}

// Events asks for events.
func (c *Client) Events(ctx context.Context, f *EventFilter) (*EventList, error) {
	v := url.Values{}
	for name, s := range map[string]string{"kind": f.Kind, "service": f.Service} {
		if s != "" {
			v.Set(name, s)
		}
	}
	if f.Since != 0 {
		v.Set("since", f.Since.String())
	}
	if f.After != 0 {
		v.Set("after", strconv.FormatUint(f.After, 10))
	}
	if f.Limit != 0 {
		v.Set("limit", strconv.Itoa(f.Limit))
	}
	return get[EventList](ctx, c.daemon, "/v1/events", v)
}
