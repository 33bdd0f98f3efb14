package hostcheck

import (
	"encoding/base64"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weirlb/weir/cmd/weir/config"
)

func TestLinksAreChecked(t *testing.T) {
	dir := t.TempDir()
	key := base64.StdEncoding.EncodeToString(make([]byte, 32))
	file := func(name, text string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	good, open, bad := file("good", key, 0o640), file("open", key, 0o644), file("bad", "hunter2", 0o600)
	for name, c := range map[string]struct {
		edit func(*config.Announce)
		want string // "": nothing
	}{
		"off":                   {func(a *config.Announce) { a.L2.Interfaces = nil }, ""},
		"no key":                {func(a *config.Announce) { a.L2.KeyFile = "" }, "every host on lo can take part"},
		"a key":                 {func(*config.Announce) {}, ""},
		"a key for all to read": {func(a *config.Announce) { a.L2.KeyFile = open }, "every user may read " + open + " (mode 0644)"},
		"no key in the file":    {func(a *config.Announce) { a.L2.KeyFile = bad }, "must have 16, 24 or 32 bytes"},
		"a password for all":    {func(a *config.Announce) { a.Peers = []config.Peer{{PasswordFile: open}} }, "announce.peers[0].passwordFile: every user may read"},
		"no interface":          {func(a *config.Announce) { a.L2.Interfaces = []string{"none0"} }, "nothing is announced on it"},
		"no subnet":             {func(a *config.Announce) { a.Prefixes = []string{"192.0.2.0/24"} }, "192.0.2.1 is in no subnet of lo"},
		"several":               {func(a *config.Announce) { a.Prefixes = []string{"0.0.0.0/0"} }, "127.0.0.9 and 2 more addresses are"},
		"a speaker":             {func(a *config.Announce) { a.Prefixes, a.Speaker = []string{"0.0.0.0/0"}, config.AnnounceBGP }, ""},
	} {
		cfg := config.Default()
		cfg.Announce.L2.Interfaces, cfg.Announce.L2.KeyFile = []string{"lo"}, good
		cfg.Announce.Prefixes = []string{"203.0.113.0/24"}
		c.edit(&cfg.Announce)
		var fs findings
		checkLinks(&fs, cfg)
		checkSecretFiles(&fs, cfg)
		checkOnLinks(&fs, cfg, []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("127.0.0.9"), netip.MustParseAddr("198.51.100.1")})
		text := ""
		for _, f := range fs {
			text += f.String() + "\n"
		}
		text = strings.ReplaceAll(text, "interface lo: nothing is announced on it: it has no address\n", "") // without a MAC address
		if c.want == "" && text != "" || !strings.Contains(text, c.want) || strings.Contains(text, "hunter2") {
			t.Errorf("%s: %q, want %q", name, text, c.want)
		}
	}
}
