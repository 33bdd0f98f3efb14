package api

import (
	"context"
	"net/http"
	"time"
)

// Verification is the answer to /v1/verify: whether the invariants of the flow table hold.
type Verification struct {
	Connections int `json:"connections"` // that were looked at
	Slots       int `json:"slots"`       // of the index that are in use
	// Faults are violated invariants, at most 100; FaultsLeftOut are those beyond.
	Faults        []string `json:"faults"`
	FaultsLeftOut int      `json:"faultsLeftOut,omitempty"`
}

// Verify asks the daemon to check the invariants of the flow table, which takes half a
// second and more.
func (c *Client) Verify(ctx context.Context) (*Verification, error) {
	return get[Verification](ctx, c.daemon, "/v1/verify", nil)
}

// verifyHandler admits a verification at a time: it does not rest, as other walks do.
func verifyHandler(src Source, walks *places, wait time.Duration) http.HandlerFunc {
	single := newPlaces("a verification", 1, wait)
	return func(w http.ResponseWriter, r *http.Request) {
		for _, p := range []*places{walks, single} {
			leave := p.admit(w, r)
			if leave == nil {
				return
			}
			defer leave()
		}
		v, err := src.Verify(r.Context())
		reply(w, v, err)
	}
}

// verifyRoutes check the flow table.
func verifyRoutes(src Source, walks *places, wait time.Duration) []route {
	return []route{{
		method: "GET", path: "/v1/verify", summary: "Check the invariants of the flow table.", answer: Verification{},
		handle: verifyHandler(src, walks, wait),
	}}
}
