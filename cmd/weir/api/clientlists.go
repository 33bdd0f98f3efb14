package api

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// Services asks for a Service, or for all with "".
func (c *Client) Services(ctx context.Context, service string) (*ServiceList, error) {
	return get[ServiceList](ctx, c.daemon, "/v1/services", named(service))
}

// Endpoints asks for the endpoints of a Service, or for all with "".
func (c *Client) Endpoints(ctx context.Context, service string) (*EndpointList, error) {
	return get[EndpointList](ctx, c.daemon, "/v1/endpoints", named(service))
}

// EachService calls f for every Service, with a value that is reused. The whole list is never
// in memory.
func (c *Client) EachService(ctx context.Context, f func(*ServiceState) error) error {
	return each(ctx, c.daemon, "/v1/services", "services", "", f)
}

// EachEndpoint is EachService for the endpoints of a Service.
func (c *Client) EachEndpoint(ctx context.Context, service string, f func(*EndpointState) error) error {
	return each(ctx, c.daemon, "/v1/endpoints", "endpoints", service, f)
}

func named(service string) url.Values {
	v := url.Values{}
	if service != "" {
		v.Set("service", service)
	}
	return v
}

// Connections calls f for each connection that matches: for at most limit, 0 for all, from
// the number after on. It returns the list without the connections.
func (c *Client) Connections(ctx context.Context, filter *FlowFilter, limit int, after uint32, f func(*Flow) error) (*ConnectionList, error) {
	v := filter.values()
	v.Set("limit", strconv.Itoa(limit))
	if after != 0 {
		v.Set("after", strconv.FormatUint(uint64(after), 10))
	}
	const path = "/v1/connections"
	res, err := c.daemon.open(ctx, http.MethodGet, path, v)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	l := &ConnectionList{}
	if err := l.read(json.NewDecoder(res.Body), f); err != nil {
		return nil, fmt.Errorf("%s: answer to %s: %w", c.daemon.socket, path, err)
	}
	return l, nil
}

// read reads the list, and calls f for each connection in place of keeping it.
func (l *ConnectionList) read(d *json.Decoder, f func(*Flow) error) error {
	if _, err := d.Token(); err != nil {
		return err
	}
	for d.More() {
		name, err := d.Token()
		if err != nil {
			return err
		}
		switch name {
		case "connections":
			if _, err := d.Token(); err != nil {
				return err
			}
			for d.More() {
				var flow Flow
				if err := d.Decode(&flow); err != nil {
					return err
				}
				if err := f(&flow); err != nil {
					return err
				}
			}
			_, err = d.Token()
		case "total":
			err = d.Decode(&l.Total)
		case "next":
			err = d.Decode(&l.Next)
		default:
			err = d.Decode(new(json.RawMessage))
		}
		if err != nil {
			return err
		}
	}
	_, err := d.Token()
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// CountConnections asks how many connections match, by group.
func (c *Client) CountConnections(ctx context.Context, filter *FlowFilter, by string, limit int) (*ConnectionCount, error) {
	v := filter.values()
	v.Set("by", by)
	v.Set("limit", strconv.Itoa(limit))
	return get[ConnectionCount](ctx, c.daemon, "/v1/connections/count", v)
}

// KillConnections removes the connections that match.
func (c *Client) KillConnections(ctx context.Context, filter *FlowFilter) (*Killed, error) {
	return send[Killed](ctx, c.daemon, http.MethodPost, "/v1/connections/kill", filter.values())
}

// LogLevel asks for the level of the log, and changes it first unless level is "".
func (c *Client) LogLevel(ctx context.Context, level string) (*LogLevel, error) {
	if level == "" {
		return get[LogLevel](ctx, c.daemon, "/v1/log-level", nil)
	}
	return send[LogLevel](ctx, c.daemon, http.MethodPut, "/v1/log-level", url.Values{"level": {level}})
}

// Profile writes a profile to w.
func (c *Client) Profile(ctx context.Context, w io.Writer, kind string, length time.Duration) error {
	v := url.Values{"kind": {kind}, "seconds": {strconv.Itoa(max(1, int(length.Seconds())))}}
	res, err := c.daemon.open(ctx, http.MethodGet, "/v1/profile", v)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	_, err = io.Copy(w, res.Body)
	return err
}
