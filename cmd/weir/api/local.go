package api

import (
	"fmt"
	"io"
	"maps"
	"net/http"
	"sync"
)

// NewLocalClient returns a client of src in this process. It gets the answers that a client of
// the socket gets, and does not compete with those clients for the answers that are given one
// at a time.
func NewLocalClient(src Source) *Client {
	return &Client{daemon{socket: "this process", http: &http.Client{Transport: local{Handler(src)}}}}
}

// local is a transport to a handler.
type local struct{ handler http.Handler }

// RoundTrip implements http.RoundTripper. The handler waits for the reader of the body.
func (l local) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	body, w := io.Pipe()
	a := &localAnswer{header: http.Header{}, body: w, begun: make(chan *http.Response, 1)}
	done := make(chan struct{})
	a.response = &http.Response{Request: r, Header: http.Header{}, Body: &localBody{body, done}, ProtoMajor: 1, ProtoMinor: 1}
	go func() {
		defer close(done)
		err := io.ErrUnexpectedEOF // also if the handler gives the answer up
		defer func() {
			if p := recover(); p != nil && p != http.ErrAbortHandler {
				err = fmt.Errorf("%v", p)
			}
			a.WriteHeader(http.StatusOK)
			_ = w.CloseWithError(err)
		}()
		l.handler.ServeHTTP(a, r)
		err = io.EOF
	}()
	select {
	case res := <-a.begun:
		return res, nil
	case <-r.Context().Done():
		_ = body.CloseWithError(r.Context().Err())
		return nil, r.Context().Err()
	}
}

// localBody is closed when the handler has returned, so that the next request finds it free.
type localBody struct {
	*io.PipeReader
	done <-chan struct{}
}

// Close implements io.Closer.
func (b *localBody) Close() error {
	err := b.PipeReader.Close()
	<-b.done
	return err
}

// localAnswer is the http.ResponseWriter of a local transport.
type localAnswer struct {
	header   http.Header
	response *http.Response
	body     *io.PipeWriter
	once     sync.Once
	begun    chan *http.Response
}

// Header implements http.ResponseWriter.
func (a *localAnswer) Header() http.Header { return a.header }

// WriteHeader implements http.ResponseWriter.
func (a *localAnswer) WriteHeader(code int) {
	a.once.Do(func() {
		a.response.StatusCode, a.response.Status = code, http.StatusText(code)
		maps.Copy(a.response.Header, a.header)
		a.begun <- a.response
	})
}

// Write implements http.ResponseWriter.
func (a *localAnswer) Write(b []byte) (int, error) {
	a.WriteHeader(http.StatusOK)
	return a.body.Write(b)
}
