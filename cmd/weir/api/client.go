package api

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
)

// Client asks a running Weir.
type Client struct{ daemon daemon }

// NewClient returns a client of the daemon that serves the socket.
func NewClient(socket string) *Client { return &Client{dial(socket)} }

// Status asks for the status.
func (c *Client) Status(ctx context.Context) (*Status, error) {
	return get[Status](ctx, c.daemon, "/v1/status", nil)
}

// Flows asks for at most limit flows that pass the filter, nil for any.
func (c *Client) Flows(ctx context.Context, limit int, filter *FlowFilter) (*FlowList, error) {
	if filter == nil {
		filter = &FlowFilter{}
	}
	v := filter.values()
	v.Set("limit", strconv.Itoa(limit))
	return get[FlowList](ctx, c.daemon, "/v1/flows", v)
}

// Frontends asks for the frontends.
func (c *Client) Frontends(ctx context.Context) (*FrontendList, error) {
	return get[FrontendList](ctx, c.daemon, "/v1/frontends", nil)
}

// Explain asks for an explanation. The result is the JSON of the whole answer,
// read as fast as the daemon sends: its later use does not delay the daemon.
func (c *Client) Explain(ctx context.Context, query ExplainQuery) ([]byte, error) {
	q := url.Values{}
	if query.Service != "" {
		q.Set("service", query.Service)
	}
	if query.WhatIf != "" {
		q.Set("whatIf", query.WhatIf)
	}
	return c.daemon.do(ctx, http.MethodGet, "/v1/explain", q)
}

// Stop asks the daemon to end for good. It does not wait for the end.
func (c *Client) Stop(ctx context.Context) error {
	_, err := c.daemon.do(ctx, http.MethodPost, "/v1/stop", nil)
	return err
}
