package workload

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/weirlb/weir/perf/netlab"
)

// Headers of every answer.
const (
	HeaderServer = "X-Server" // the server's name
	HeaderRemote = "X-Remote" // the peer as the server sees it
	HeaderLocal  = "X-Local"  // the address the connection came to
)

// Server is an HTTP server with these paths:
//
//	/                      the server's name
//	/bytes?n=N&seed=S      N bytes of NewStream(S)
//	/slow?n=N&seed=S&rate=R  the same at R bytes per second
//	/upload                reads the body, answers its SHA-256 in hexadecimal
type Server struct {
	Name string

	namespace *netlab.Namespace
	address   string
	http      *http.Server

	mu        sync.Mutex
	listeners []net.Listener
	serving   sync.WaitGroup
}

// Serve starts an HTTP server inside n on a numeric address. "[::]:port"
// serves both families.
func Serve(n *netlab.Namespace, name, address string) (*Server, error) {
	s := &Server{Name: name, namespace: n, address: address}
	mux := http.NewServeMux()
	mux.HandleFunc("/{$}", func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, name) })
	mux.HandleFunc("GET /bytes", serveBytes)
	mux.HandleFunc("GET /slow", serveSlow)
	mux.HandleFunc("POST /upload", serveUpload)
	s.http = &http.Server{
		Handler:  s.stamp(mux),
		ErrorLog: log.New(io.Discard, "", 0), // clients that hang up are part of the exercise
	}
	if err := s.Accept(); err != nil {
		return nil, err
	}
	return s, nil
}

func (s *Server) stamp(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set(HeaderServer, s.Name)
		h.Set(HeaderRemote, r.RemoteAddr)
		if a, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr); ok {
			h.Set(HeaderLocal, a.String())
		}
		next.ServeHTTP(w, r)
	})
}

// Accept listens (again, after Refuse).
func (s *Server) Accept() error {
	l, err := s.namespace.Listen("tcp", s.address)
	if err != nil {
		return fmt.Errorf("server %s: %w", s.Name, err)
	}
	s.mu.Lock()
	s.listeners = append(s.listeners, l)
	s.mu.Unlock()
	s.serving.Go(func() { s.http.Serve(l) }) // returns when l is closed
	return nil
}

// Refuse closes the listener: the kernel resets new connections, those that
// exist go on.
func (s *Server) Refuse() error {
	s.mu.Lock()
	listeners := s.listeners
	s.listeners = nil
	s.mu.Unlock()
	var errs []error
	for _, l := range listeners {
		errs = append(errs, l.Close())
	}
	return errors.Join(errs...)
}

// Accepting reports whether the server listens.
func (s *Server) Accepting() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.listeners) > 0
}

// Close ends the server and all connections.
func (s *Server) Close() error {
	err := s.http.Close()
	s.serving.Wait()
	return err
}

// number reads a query parameter of at least min.
func number(w http.ResponseWriter, r *http.Request, name string, min int64) (int64, bool) {
	v, err := strconv.ParseInt(r.URL.Query().Get(name), 10, 64)
	if err != nil || v < min {
		http.Error(w, fmt.Sprintf("%s: want a number of at least %d", name, min), http.StatusBadRequest)
		return 0, false
	}
	return v, true
}

func serveBytes(w http.ResponseWriter, r *http.Request) {
	n, ok1 := number(w, r, "n", 0)
	seed, ok2 := number(w, r, "seed", 0)
	if !ok1 || !ok2 {
		return
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Length", strconv.FormatInt(n, 10))
	io.CopyN(w, NewStream(uint64(seed)), n) // a client that is gone reports the failure
}

func serveSlow(w http.ResponseWriter, r *http.Request) {
	const perSecond = 20 // chunks
	n, ok1 := number(w, r, "n", 0)
	seed, ok2 := number(w, r, "seed", 0)
	rate, ok3 := number(w, r, "rate", perSecond)
	if !ok1 || !ok2 || !ok3 {
		return
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Length", strconv.FormatInt(n, 10))
	tick := time.NewTicker(time.Second / perSecond)
	defer tick.Stop()
	stream, flusher := NewStream(uint64(seed)), http.NewResponseController(w)
	for n > 0 {
		chunk := min(n, rate/perSecond)
		if _, err := io.CopyN(w, stream, chunk); err != nil {
			return
		}
		if flusher.Flush() != nil {
			return
		}
		n -= chunk
		select {
		case <-tick.C:
		case <-r.Context().Done():
			return
		}
	}
}

func serveUpload(w http.ResponseWriter, r *http.Request) {
	h := sha256.New()
	if _, err := io.Copy(h, r.Body); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	io.WriteString(w, hex.EncodeToString(h.Sum(nil)))
}

// shut closes c when ctx is done; the returned function ends the watch.
func shut(ctx context.Context, c net.Conn) (stop func() bool) {
	return context.AfterFunc(ctx, func() { c.Close() })
}
