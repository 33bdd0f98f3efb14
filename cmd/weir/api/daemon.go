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

// daemon is the other side of the socket.
type daemon struct {
	socket string
	http   *http.Client
}

func dial(socket string) daemon {
	return daemon{socket: socket, http: &http.Client{
		Transport: &http.Transport{
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				var d net.Dialer
				return d.DialContext(ctx, "unix", socket)
			},
		},
	}}
}

func get[T any](ctx context.Context, d daemon, path string, query url.Values) (*T, error) {
	return send[T](ctx, d, http.MethodGet, path, query)
}

func send[T any](ctx context.Context, d daemon, method, path string, query url.Values) (*T, error) {
	body, err := d.do(ctx, method, path, query)
	if err != nil {
		return nil, err
	}
	v := new(T)
	if err := json.Unmarshal(body, v); err != nil {
		return nil, fmt.Errorf("%s: answer to %s: %w", d.socket, path, err)
	}
	return v, nil
}

func each[T any](ctx context.Context, asked daemon, path, list, service string, f func(*T) error) error {
	res, err := asked.open(ctx, http.MethodGet, path, named(service))
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if err := eachOf(json.NewDecoder(res.Body), list, f); err != nil {
		return fmt.Errorf("%s: answer to %s: %w", asked.socket, path, err)
	}
	return nil
}

// eachOf reads an object, and calls f for each element of a field.
func eachOf[T any](d *json.Decoder, list string, f func(*T) error) error {
	if _, err := d.Token(); err != nil {
		return err
	}
	var v T
	for d.More() {
		name, err := d.Token()
		if err != nil {
			return err
		}
		if name != list {
			if err := d.Decode(new(json.RawMessage)); err != nil {
				return err
			}
			continue
		}
		if _, err := d.Token(); err != nil {
			return err
		}
		for d.More() {
			var zero T
			v = zero
			if err := d.Decode(&v); err != nil {
				return err
			}
			if err := f(&v); err != nil {
				return err
			}
		}
		if _, err := d.Token(); err != nil {
			return err
		}
	}
	if _, err := d.Token(); errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	} else if err != nil {
		return err
	}
	return nil
}

// do returns the body of an answer that is not an error.
func (d daemon) do(ctx context.Context, method, path string, query url.Values) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	res, err := d.open(ctx, method, path, query)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, maxReply))
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF):
		return nil, fmt.Errorf("%s: the daemon ended its answer to %s early", d.socket, path)
	case err != nil:
		return nil, fmt.Errorf("%s: %w", d.socket, err)
	}
	return body, nil
}

// open asks, and returns an answer that is not an error. The caller closes the body.
func (d daemon) open(ctx context.Context, method, path string, query url.Values) (*http.Response, error) {
	u := url.URL{Scheme: "http", Host: "weir", Path: path, RawQuery: query.Encode()}
	req, err := http.NewRequestWithContext(ctx, method, u.String(), nil)
	if err != nil {
		return nil, err
	}
	res, err := d.http.Do(req)
	if err != nil {
		return nil, d.explainError(err)
	}
	if res.StatusCode == http.StatusOK {
		return res, nil
	}
	return nil, failureOf(res)
}

// stream returns an answer that may take any time.
func (d daemon) stream(ctx context.Context, path string, query url.Values) (io.ReadCloser, error) {
	u := url.URL{Scheme: "http", Host: "weir", Path: path, RawQuery: query.Encode()}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, err
	}
	patient := http.Client{Transport: d.http.Transport}
	res, err := patient.Do(req)
	if err != nil {
		return nil, d.explainError(err)
	}
	if res.StatusCode == http.StatusOK {
		return res.Body, nil
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
func (d daemon) explainError(err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("%w: nothing answers on %s", ErrNotRunning, d.socket)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%s: permission denied for uid %d: run the command as root, or as a member of admin.group", d.socket, os.Geteuid())
	}
	var ue *url.Error
	if errors.As(err, &ue) {
		err = ue.Err
	}
	return fmt.Errorf("%s: %w", d.socket, err)
}
