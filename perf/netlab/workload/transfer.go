package workload

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/weirlb/weir/perf/netlab"
)

// Transfer is a download or upload whose bytes are checked.
type Transfer struct {
	Namespace *netlab.Namespace
	Target    netip.AddrPort
	Bytes     int64
	Seed      uint64
	Rate      int64 // bytes per second of a download; 0: as fast as it goes

	moved  atomic.Int64
	server atomic.Pointer[string]
	remote atomic.Pointer[string]
}

// Moved is the number of bytes moved so far.
func (t *Transfer) Moved() int64 { return t.moved.Load() }

// Server is the name of the server that answered, "" before.
func (t *Transfer) Server() string { return load(&t.server) }

// SeenAs is the client's address and port as the server saw it, "" before the
// answer.
func (t *Transfer) SeenAs() string { return load(&t.remote) }

func load(p *atomic.Pointer[string]) string {
	if s := p.Load(); s != nil {
		return *s
	}
	return ""
}

// Download gets t.Bytes and compares their SHA-256 with that of the requested stream.
func (t *Transfer) Download(ctx context.Context) error {
	path := fmt.Sprintf("/bytes?n=%d&seed=%d", t.Bytes, t.Seed)
	if t.Rate > 0 {
		path = fmt.Sprintf("/slow?n=%d&seed=%d&rate=%d", t.Bytes, t.Seed, t.Rate)
	}
	h := sha256.New()
	err := t.do(ctx, http.MethodGet, path, nil, func(body io.Reader) error {
		_, err := io.Copy(io.MultiWriter(h, t), body)
		return err
	})
	if err != nil {
		return fmt.Errorf("download after %d of %d bytes: %w", t.Moved(), t.Bytes, err)
	}
	return t.compare("download", hex.EncodeToString(h.Sum(nil)))
}

// Upload sends t.Bytes and compares the SHA-256 that the server computed.
func (t *Transfer) Upload(ctx context.Context) error {
	var sum []byte
	body := io.TeeReader(io.LimitReader(NewStream(t.Seed), t.Bytes), t)
	err := t.do(ctx, http.MethodPost, "/upload", body, func(answer io.Reader) (err error) {
		sum, err = io.ReadAll(answer)
		return err
	})
	if err != nil {
		return fmt.Errorf("upload after %d of %d bytes: %w", t.Moved(), t.Bytes, err)
	}
	return t.compare("upload", string(sum))
}

func (t *Transfer) compare(what, got string) error {
	if want := StreamSum(t.Seed, t.Bytes); got != want {
		return fmt.Errorf("%s through %s of %d bytes has SHA-256 %s, want %s", what, t.Server(), t.Moved(), got, want)
	}
	return nil
}

// Write counts bytes; it makes a Transfer the end of a TeeReader.
func (t *Transfer) Write(p []byte) (int, error) {
	t.moved.Add(int64(len(p)))
	return len(p), nil
}

func (t *Transfer) do(ctx context.Context, method, path string, body io.Reader, read func(io.Reader) error) error {
	request, err := http.NewRequestWithContext(ctx, method, "http://"+t.Target.String()+path, body)
	if err != nil {
		return err
	}
	if body != nil {
		request.ContentLength = t.Bytes
	}
	client := http.Client{Transport: &http.Transport{
		DialContext:        t.Namespace.DialContext,
		DisableKeepAlives:  true,
		DisableCompression: true,
	}}
	answer, err := client.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	server, remote := answer.Header.Get(HeaderServer), answer.Header.Get(HeaderRemote)
	t.server.Store(&server)
	t.remote.Store(&remote)
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answered %s", server, answer.Status)
	}
	return read(answer.Body)
}

// PingPong exchanges a small message with a TCP echo server over c.
func PingPong(c net.Conn, message string, within time.Duration) error {
	if err := c.SetDeadline(time.Now().Add(within)); err != nil {
		return err
	}
	if _, err := io.WriteString(c, message); err != nil {
		return err
	}
	got := make([]byte, len(message))
	if _, err := io.ReadFull(c, got); err != nil {
		return err
	}
	if string(got) != message {
		return fmt.Errorf("sent %q, got %q back", message, got)
	}
	return nil
}
