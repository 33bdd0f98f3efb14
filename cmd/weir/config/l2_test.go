package config

import (
	"encoding/base64"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestLinksAreValidated(t *testing.T) {
	for name, c := range map[string]struct {
		edit func(*Announce)
		want string // "": it is valid
	}{
		"interfaces alone":   {func(*Announce) {}, ""},
		"beside a speaker":   {func(a *Announce) { a.Speaker = AnnounceKernel }, "announce.prefixes"},
		"no name":            {func(a *Announce) { a.L2.Interfaces = []string{""} }, "announce.l2.interfaces[0]"},
		"twice":              {func(a *Announce) { a.L2.Interfaces = []string{"eth0", "eth0"} }, "announce.l2.interfaces[1]"},
		"relative key file":  {func(a *Announce) { a.L2.KeyFile = "key" }, "announce.l2.keyFile"},
		"times are the same": {func(a *Announce) { a.SettleSeconds = 61 }, "announce.settleSeconds"},
	} {
		cfg := Default()
		cfg.Announce.L2.Interfaces = []string{"eth0"}
		c.edit(&cfg.Announce)
		var r report
		validateAnnounce(cfg, &r)
		text := ""
		for _, e := range r.errs {
			text += e.Error() + "\n"
		}
		if (text == "") != (c.want == "") || !strings.Contains(text, c.want) {
			t.Errorf("%s: %q, want %q", name, text, c.want)
		}
	}
}

// Without prefixes the subnets of the interfaces bound the addresses, unless there is a speaker.
func TestPrefixesOfLinks(t *testing.T) {
	cfg := Default()
	cfg.Announce.L2.Interfaces = []string{"eth0"}
	if s := cfg.Announce.Settings(); len(s.Allow) != 2 || !s.Allow[0].Contains(netip.MustParseAddr("192.0.2.1")) {
		t.Errorf("%v", s.Allow)
	}
	cfg.Announce.Prefixes = []string{"192.0.2.0/24"}
	if s := cfg.Announce.Settings(); len(s.Allow) != 1 {
		t.Errorf("%v", s.Allow)
	}
}

func TestKeyOfLinks(t *testing.T) {
	file := filepath.Join(t.TempDir(), "key")
	for text, ok := range map[string]bool{
		base64.StdEncoding.EncodeToString(make([]byte, 32)) + "\n": true,
		base64.StdEncoding.EncodeToString(make([]byte, 31)):        false,
		"a password": false,
		"":           false,
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		l := L2{KeyFile: file}
		if key, err := l.Key(); (err == nil) != ok || ok && len(key) != 32 {
			t.Errorf("%q: %v %v", text, key, err)
		}
	}
}
