package config

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
)

// Lengths of the token of the status page, in bytes.
const (
	leastToken = 16
	maxToken   = 4096
)

// StatusPage is a page for browsers with Services, endpoints, rates, problems and events. It
// changes nothing.
type StatusPage struct {
	// BindAddress is the address of the page; "" is no page. An address that is not loopback
	// needs statusPage.tokenFile.
	BindAddress string `json:"bindAddress"`
	// TokenFile is the path of a file with a token of at least 16 characters. Browsers ask
	// for it as a password, with any user name; other clients may send it as a bearer token.
	// It is read at the start. The page has no TLS: beyond a trusted network put a proxy in
	// front.
	TokenFile string `json:"tokenFile"`
}

// Token reads the token; "" without a file.
func (p *StatusPage) Token() (string, error) {
	if p.TokenFile == "" {
		return "", nil
	}
	text, err := os.ReadFile(p.TokenFile)
	if err != nil {
		return "", fmt.Errorf("statusPage.tokenFile: %w", err)
	}
	token := strings.TrimSpace(string(text))
	if len(token) < leastToken || len(token) > maxToken {
		return "", fmt.Errorf("statusPage.tokenFile: %s has %d characters, and a token %d to %d", p.TokenFile, len(token), leastToken, maxToken)
	}
	return token, nil
}

func validateStatusPage(c *Configuration, r *report, others ...netip.AddrPort) {
	p := &c.StatusPage
	a := checkBindAddress(c, r, "statusPage.bindAddress", p.BindAddress)
	if p.TokenFile != "" && !filepath.IsAbs(p.TokenFile) {
		r.addf("statusPage.tokenFile", noSecretFile)
	}
	if !a.IsValid() {
		return
	}
	if !a.Addr().Unmap().IsLoopback() && p.TokenFile == "" {
		r.addf("statusPage.bindAddress", "%s is not loopback and needs statusPage.tokenFile: the page has Services, addresses and events", a)
	}
	for i, name := range []string{"metricsBindAddress", "healthzBindAddress"} {
		if collide(a, others[i]) {
			r.addf("statusPage.bindAddress", "%s collides with %s %s", a, name, others[i])
		}
	}
}

// collide reports whether two listeners cannot be open at the same time.
func collide(a, b netip.AddrPort) bool {
	return a.IsValid() && b.IsValid() && a.Port() == b.Port() && (a.Addr() == b.Addr() || a.Addr().IsUnspecified() || b.Addr().IsUnspecified())
}
