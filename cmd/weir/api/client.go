package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// ErrNotRunning means that nothing answers on the socket.
var ErrNotRunning = errors.New("no Weir is running")

// ErrTryAgain means that the daemon answers as many requests of the kind as it may: try again soon.
var ErrTryAgain = errors.New("try again")

// maxReply bounds an answer: 16 Mi flows of 256 bytes would be more, but
// nobody reads them.
const maxReply = 1 << 30

// answerTimeout is how long an answer that is read as a whole may take. Answers that are read
// part by part take as long as they take.
const answerTimeout = 30 * time.Second

// Client asks a running Weir.
type Client struct {
	socket string
	http   *http.Client
}

// NewClient returns a client of the daemon that serves the socket.
func NewClient(socket string) *Client {
	return &Client{socket: socket, http: &http.Client{
		Transport: &http.Transport{
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				var d net.Dialer
				return d.DialContext(ctx, "unix", socket)
			},
		},
	}}
}

// Status asks for the status.
func (c *Client) Status(ctx context.Context) (*Status, error) {
	return get[Status](ctx, c, "/v1/status", nil)
}

// Flows asks for at most limit flows that pass the filter, nil for any.
func (c *Client) Flows(ctx context.Context, limit int, filter *FlowFilter) (*FlowList, error) {
	if filter == nil {
		filter = &FlowFilter{}
	}
	v := filter.values()
	v.Set("limit", strconv.Itoa(limit))
	return get[FlowList](ctx, c, "/v1/flows", v)
}

// Frontends asks for the frontends.
func (c *Client) Frontends(ctx context.Context) (*FrontendList, error) {
	return get[FrontendList](ctx, c, "/v1/frontends", nil)
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
	return c.read(ctx, "/v1/explain", q)
}

func get[T any](ctx context.Context, c *Client, path string, query url.Values) (*T, error) {
	return send[T](ctx, c, http.MethodGet, path, query)
}

func send[T any](ctx context.Context, c *Client, method, path string, query url.Values) (*T, error) {
	body, err := c.do(ctx, method, path, query)
	if err != nil {
		return nil, err
	}
	v := new(T)
	if err := json.Unmarshal(body, v); err != nil {
		return nil, fmt.Errorf("%s: answer to %s: %w", c.socket, path, err)
	}
	return v, nil
}

// Stop asks the daemon to end for good. It does not wait for the end.
func (c *Client) Stop(ctx context.Context) error {
	_, err := c.do(ctx, http.MethodPost, "/v1/stop", nil)
	return err
}

func (c *Client) read(ctx context.Context, path string, query url.Values) ([]byte, error) {
	return c.do(ctx, http.MethodGet, path, query)
}

// do returns the body of an answer that is not an error.
func (c *Client) do(ctx context.Context, method, path string, query url.Values) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	res, err := c.open(ctx, method, path, query)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, maxReply))
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF):
		return nil, fmt.Errorf("%s: the daemon ended its answer to %s early", c.socket, path)
	case err != nil:
		return nil, fmt.Errorf("%s: %w", c.socket, err)
	}
	return body, nil
}

// open asks, and returns an answer that is not an error. The caller closes the body.
func (c *Client) open(ctx context.Context, method, path string, query url.Values) (*http.Response, error) {
	u := url.URL{Scheme: "http", Host: "weir", Path: path, RawQuery: query.Encode()}
	req, err := http.NewRequestWithContext(ctx, method, u.String(), nil)
	if err != nil {
		return nil, err
	}
	res, err := c.http.Do(req)
	if err != nil {
		return nil, c.explainError(err)
	}
	if res.StatusCode == http.StatusOK {
		return res, nil
	}
	return nil, failureOf(res)
}

// failureOf is the error of an answer that is one, and closes the body.
func failureOf(res *http.Response) error {
	defer res.Body.Close()
	body, _ := io.ReadAll(io.LimitReader(res.Body, 1<<16))
	var f Failure
	if json.Unmarshal(body, &f) != nil || f.Error == "" {
		f.Error = res.Status
	}
	request, unknown := strings.CutSuffix(f.Error, noSuchRequest)
	switch {
	case unknown:
		return fmt.Errorf("the running Weir does not know %s: it is of another version than this command", request)
	case res.StatusCode == http.StatusNotFound:
		return notFound(f.Error)
	case res.StatusCode == http.StatusBadRequest:
		return wrongUse(f.Error)
	case res.StatusCode == http.StatusTooManyRequests, res.StatusCode == http.StatusServiceUnavailable:
		return busy(f.Error)
	}
	return errors.New(f.Error)
}

// busy is ErrTryAgain in the words of the daemon.
type busy string

func (b busy) Error() string { return string(b) }

// Is makes it an ErrTryAgain.
func (b busy) Is(target error) bool { return target == ErrTryAgain }

// wrongUse is a refusal of the request as such: a value that no state of the daemon makes valid.
type wrongUse string

func (w wrongUse) Error() string { return string(w) }

// ExitCode is the status of a command that was called wrongly.
func (wrongUse) ExitCode() int { return 2 }

// notFound is ErrNotFound in the words of the daemon.
type notFound string

func (n notFound) Error() string { return string(n) }

// Is makes it an ErrNotFound.
func (n notFound) Is(target error) bool { return target == ErrNotFound }

// explainError explains a failed connection.
func (c *Client) explainError(err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("%w: nothing answers on %s", ErrNotRunning, c.socket)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%s: permission denied for uid %d: run the command as root, or as a member of admin.group", c.socket, os.Geteuid())
	}
	var ue *url.Error
	if errors.As(err, &ue) {
		err = ue.Err
	}
	return fmt.Errorf("%s: %w", c.socket, err)
}
