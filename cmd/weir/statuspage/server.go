// Package statuspage is a page for browsers: Services with tiers and endpoints, rates,
// workers, drops, problems and events of a node.
//
// The server renders everything, so that tables work without JavaScript; the script of the page
// asks for the same page every two seconds and changes the document where it differs. All data
// are answers of package api. The page changes nothing.
package statuspage

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"golang.org/x/time/rate"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/cmd/weir/httpserver"
)

// Bounds.
const (
	maxConnections = 64
	// maxRenders is how many answers are made at the same time. Others wait for waitRender.
	maxRenders = 4
	waitRender = 5 * time.Second
	// Of wrong tokens so many are answered per second.
	wrongTokens = 5
	writeTime   = 30 * time.Second
)

//go:embed assets
var files embed.FS

// policy forbids the page everything but its own style, script, icon and data.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// Page serves the page.
type Page struct {
	sampler *sampler
	mux     *http.ServeMux
	token   []byte // SHA-256; nil: none is asked for
	local   bool   // the address is loopback
	renders chan struct{}
	wrong   *rate.Limiter
	log     *slog.Logger
}

// New makes the page of a source for an address: loopback tells whether other hosts cannot reach
// it. token is "" for none.
func New(src api.Source, loopback bool, token string, log *slog.Logger) *Page {
	p := &Page{
		sampler: newSampler(api.NewLocalClient(src)), mux: http.NewServeMux(), local: loopback,
		renders: make(chan struct{}, maxRenders), wrong: rate.NewLimiter(wrongTokens, wrongTokens), log: log,
	}
	if token != "" {
		sum := sha256.Sum256([]byte(token))
		p.token = sum[:]
	}
	assets, err := fs.Sub(files, "assets")
	if err != nil {
		panic(err) // the folder is embedded
	}
	p.mux.Handle("GET /assets/", http.StripPrefix("/assets/", http.FileServerFS(assets)))
	p.mux.HandleFunc("GET /{$}", p.serveNode)
	p.mux.HandleFunc("GET /service", p.serveService)
	return p
}

// Serve serves the page on l until ctx ends, and closes l.
func (p *Page) Serve(ctx context.Context, l net.Listener) error {
	go p.sampler.run(ctx)
	err := httpserver.Serve(ctx, l, p, httpserver.Options{Limit: httpserver.NewLimit(maxConnections), WriteTimeout: writeTime, Log: p.log})
	if err != nil {
		return fmt.Errorf("status page: %w", err)
	}
	return nil
}

// ServeHTTP implements http.Handler.
func (p *Page) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cache-Control", "no-store")
	if p.local && !localHost(r.Host) {
		http.Error(w, "this page is for names and addresses of this host alone", http.StatusMisdirectedRequest)
		return
	}
	if !p.knows(r) {
		// A request without a token is no guess: browsers begin so, and ask for the token then.
		if r.Header.Get("Authorization") != "" && !p.wrong.Allow() {
			http.Error(w, "too many wrong tokens: try again later", http.StatusTooManyRequests)
			return
		}
		h.Set("WWW-Authenticate", `Basic realm="Weir", charset="UTF-8"`)
		http.Error(w, "the token of statusPage.tokenFile is needed as the password", http.StatusUnauthorized)
		return
	}
	p.mux.ServeHTTP(w, r)
}

// localHost reports whether the Host of a request means this host: a foreign name that resolves
// to a loopback address is that of another site, which could read the page (DNS rebinding).
func localHost(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	if strings.EqualFold(host, "localhost") {
		return true
	}
	a, err := netip.ParseAddr(host)
	return err == nil && a.Unmap().IsLoopback()
}

// knows reports whether a request has the token, if one is needed.
func (p *Page) knows(r *http.Request) bool {
	if p.token == nil {
		return true
	}
	_, given, ok := r.BasicAuth()
	if !ok {
		given, ok = strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	}
	sum := sha256.Sum256([]byte(given))
	return subtle.ConstantTimeCompare(sum[:], p.token) == 1 && ok
}

// errBusy is the error of a request for which there was no room.
var errBusy = errors.New("too many requests at the same time: try again later")

// admit waits for room to make an answer. The caller calls leave after nil.
func (p *Page) admit(ctx context.Context) error {
	t := time.NewTimer(waitRender)
	defer t.Stop()
	select {
	case p.renders <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return errBusy
	}
}

func (p *Page) leave() { <-p.renders }
