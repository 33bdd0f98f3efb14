package e2e

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/weirlb/weir/cmd/weir/config"
)

// pprofStatus is what /debug/pprof on the metrics address answers.
func (f *fixture) pprofStatus() (int, error) {
	client := &http.Client{Timeout: within, Transport: &http.Transport{DialContext: f.Edge.Edge.DialContext, DisableKeepAlives: true}}
	r, err := client.Get("http://127.0.0.1:9464/debug/pprof/cmdline")
	if err != nil {
		return 0, err
	}
	return r.StatusCode, r.Body.Close()
}

// Debug logging and profiles are for looking at a running Weir: a restart would end
// what is to be looked at.
func TestWireReloadTakesOverLoggingAndProfiling(t *testing.T) {
	f := ownFixture(t, options{services: []service{toAttached}})
	c := f.dialed(t, toAttached.at(echoPort, false))
	quiet := f.config()
	reload := func(config string, profiles int) {
		t.Helper()
		replace(t, f.path("config.yaml"), []byte(config))
		if err := f.weir.Signal(syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
		if err := f.poll(func(context.Context) error {
			got, err := f.pprofStatus()
			if err == nil && got != profiles {
				err = fmt.Errorf("/debug/pprof answers %d, want %d", got, profiles)
			}
			return err
		}); err != nil {
			t.Error(err)
		}
	}
	reload(quiet+"logging: {level: debug}\nenableProfiling: true\n", 200)
	if err := f.poll(func(context.Context) error {
		said, err := os.ReadFile(f.weir.LogFile())
		if err == nil && !strings.Contains(string(said), "level=DEBUG") {
			err = fmt.Errorf("nothing is logged at debug level")
		}
		return err
	}); err != nil {
		t.Error(err)
	}
	reload(quiet, 404)
	checkSays(t, c)
	s, err := f.admin.Status(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range s.Problems {
		if p.Kind == "restart-needed" {
			t.Errorf("%v, of %v that can be reloaded", p, config.Reloadable())
		}
	}
}
