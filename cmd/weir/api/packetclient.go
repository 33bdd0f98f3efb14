package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strconv"
)

// Drops asks for the packets that were dropped lately and that match, nil for any.
func (c *Client) Drops(ctx context.Context, match *DropFilter) (*DropList, error) {
	v := url.Values{}
	if match != nil {
		set(v, "reason", match.Reason)
		set(v, "service", match.Service)
		if match.Prefix.IsValid() {
			v.Set("prefix", match.Prefix.String())
		}
	}
	return get[DropList](ctx, c.daemon, "/v1/drops", v)
}

func set(v url.Values, name, value string) {
	if value != "" {
		v.Set(name, value)
	}
}

func (q *PacketQuery) values() url.Values {
	v := url.Values{}
	set(v, "filter", q.Filter)
	for name, n := range map[string]int{
		"packets": q.Packets, "seconds": int(q.Time.Seconds()), "snaplen": q.SnapLen, "bytes": q.Bytes, "rate": q.Rate,
	} {
		if n > 0 {
			v.Set(name, strconv.Itoa(n))
		}
	}
	return v
}

// Capture asks for packets as a pcapng file, which grows until a bound is reached or ctx
// ends. It returns when the capture has begun; the caller closes the result.
func (c *Client) Capture(ctx context.Context, q *PacketQuery) (io.ReadCloser, error) {
	return c.daemon.stream(ctx, "/v1/capture", q.values())
}

// Live asks for packets and calls each for every one until a bound is reached, each fails,
// or ctx ends, which is no error.
func (c *Client) Live(ctx context.Context, q *PacketQuery, each func(*Live) error) error {
	body, err := c.daemon.stream(ctx, "/v1/trace/live", q.values())
	if err != nil {
		return err
	}
	defer body.Close()
	d := json.NewDecoder(body)
	for {
		var l Live
		switch err := d.Decode(&l); {
		case errors.Is(err, io.EOF), ctx.Err() != nil:
			return nil
		case err != nil:
			return fmt.Errorf("%s: %w", c.daemon.socket, err)
		}
		if err := each(&l); err != nil {
			return err
		}
	}
}
