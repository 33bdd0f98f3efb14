package hostcheck

import (
	"net"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weirlb/weir/cmd/weir/config"
)

// What keeps weir run from starting is an error of weir check.
func TestWhatKeepsARunFromStarting(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, tt := range []struct {
		name   string
		change func(*config.Configuration)
		want   string
	}{
		{"nothing", func(*config.Configuration) {}, ""},
		{"a port in use", func(c *config.Configuration) { c.HealthzBindAddress = l.Addr().String() }, ""},
		{"unknown group", func(c *config.Configuration) { c.Admin.Group = "nosuchgroup" }, "admin.group: group: unknown group nosuchgroup"},
		{"no token", func(c *config.Configuration) { c.StatusPage.TokenFile = filepath.Join(t.TempDir(), "token") }, "statusPage.tokenFile: open "},
		{"an address of another", func(c *config.Configuration) { c.HealthzBindAddress = "203.0.113.9:9465" },
			"healthzBindAddress: listen on 203.0.113.9:9465: bind: cannot assign requested address"},
		{"too many connections", func(c *config.Configuration) { c.Conntrack.MaxFlows = 1 << 30 }, "conntrack.maxFlows: 1073741823 flows need "},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cfg := config.Default()
			tt.change(cfg)
			var fs findings
			checkStart(&fs, cfg)
			if tt.want == "" && len(fs) == 0 {
				return
			}
			if tt.want == "" || len(fs) != 1 || fs[0].Level != Wrong || !strings.HasPrefix(fs[0].Text, tt.want) {
				t.Errorf("%v, want %q", fs, tt.want)
			}
		})
	}
}
