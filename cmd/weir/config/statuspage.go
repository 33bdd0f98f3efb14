package config

import (
	"net/netip"
	"path/filepath"
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
