package api

import (
	"context"
	"net/http"
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
	return get[Verification](ctx, c, "/v1/verify", nil)
}

func verifyHandler(src Source) http.HandlerFunc {
	h := &heavy{kind: "a verification"}
	return func(w http.ResponseWriter, r *http.Request) {
		if !h.admit(w) {
			return
		}
		defer h.leave()
		v, err := src.Verify(r.Context())
		reply(w, v, err)
	}
}
