package api

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"time"
)

// AddressExplanation says whether this node announces an address to routers, and why or why not.
type AddressExplanation struct {
	Node      string     `json:"node"`
	Address   netip.Addr `json:"address"`
	Announced bool       `json:"announced"`
	// Reason is that of the first condition that is not met, and Detail says more.
	Reason string `json:"reason,omitempty"`
	Detail string `json:"detail,omitempty"`
	// Since is when the answer became what it is; absent for an address without a frontend.
	Since *time.Time `json:"since,omitempty"`
	// Conditions are all that must be met, in the order in which they are looked at.
	Conditions []AddressCondition `json:"conditions"`
	// Routes are the announced prefixes that contain the address. Another address may be the
	// reason for an aggregate.
	Routes []string `json:"routes"`
	// LimitedTo are the peers of each of Routes that some peers alone are told.
	LimitedTo map[string][]string `json:"limitedTo,omitempty"`
	// Peers are the routers: those with a session are told of Routes.
	Peers     []AnnouncePeer    `json:"peers"`
	Frontends []AddressFrontend `json:"frontends"`
	// Choice and ChoosesByNode are as in AnnouncedAddress.
	Choice        string `json:"choice,omitempty"`
	ChoosesByNode bool   `json:"choosesByNode,omitempty"`
	// L2 is the announcement on links; absent where announce.l2 has no interface.
	L2 *AnnouncedL2 `json:"l2,omitempty"`
}

// AddressCondition is a condition of an announcement.
type AddressCondition struct {
	Condition string `json:"condition"` // such as "programmed"
	Met       bool   `json:"met"`
	Detail    string `json:"detail,omitempty"`
}

// AddressFrontend is a frontend of an address.
type AddressFrontend struct {
	Service    string `json:"service"`
	Address    string `json:"address"` // address:port
	Protocol   string `json:"protocol"`
	Programmed bool   `json:"programmed"`
	Mode       string `json:"mode,omitempty"`
	// Choice is equal on nodes that choose the same endpoint for the same connection.
	Choice    string             `json:"choice,omitempty"`
	Endpoints []FrontendEndpoint `json:"endpoints"`
}

// AddressSource explains the announcement of addresses.
type AddressSource interface {
	// ExplainAddress wraps ErrNotFound where nothing is announced at all.
	ExplainAddress(ctx context.Context, address netip.Addr) (*AddressExplanation, error)
}

// addressRoutes are those about the announcement of addresses.
func addressRoutes(src Source) []route {
	return []route{{
		method: "GET", path: "/v1/explain/address", summary: "Whether this node announces an address to routers, and why or why not.",
		answer: AddressExplanation{}, params: []param{{name: "address", usage: "the address", required: true}},
		handle: func(w http.ResponseWriter, r *http.Request) {
			a, err := netip.ParseAddr(r.FormValue("address"))
			if err != nil {
				refuse(w, http.StatusBadRequest, fmt.Errorf("address: must be an IP address, is %q", r.FormValue("address")))
				return
			}
			s, err := src.ExplainAddress(r.Context(), a.Unmap())
			reply(w, s, err)
		},
	}}
}

// ExplainAddress asks whether the node announces an address.
func (c *Client) ExplainAddress(ctx context.Context, address netip.Addr) (*AddressExplanation, error) {
	return get[AddressExplanation](ctx, c.daemon, "/v1/explain/address", url.Values{"address": {address.String()}})
}
