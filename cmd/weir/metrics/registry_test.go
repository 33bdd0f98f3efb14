package metrics

import (
	"context"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/cmd/weir/healthz"
)

// publishing is a source whose status waits for a publication.
type publishing struct {
	began time.Time
	done  chan struct{}
}

func (p *publishing) Status(context.Context) (*api.Status, error) {
	<-p.done
	return example(), nil
}

func (p *publishing) Health() healthz.Health {
	return healthz.Health{Healthy: true, Pending: time.Since(p.began)}
}

// While an update is published for long a scrape says so: a node that Prometheus could not scrape
// would count as down. Scrapes do not pile up meanwhile.
func TestAScrapeDoesNotWaitForAPublication(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := &publishing{time.Now(), make(chan struct{})}
		h := Handler(NewRegistry(src), func() bool { return false }, slog.New(slog.DiscardHandler))
		for range 3 * 4 { // more than are answered at the same time
			code, body := scrape(t, h)
			if code != http.StatusOK || !strings.Contains(body, "\nweir_healthy 1\n") || strings.Contains(body, "\nweir_services ") {
				t.Fatalf("%d %s", code, body)
			}
		}
		if _, body := scrape(t, h); !strings.Contains(body, "\nweir_update_pending_seconds 65\n") {
			t.Error(body)
		}
		close(src.done)
		synctest.Wait()
		if code, body := scrape(t, h); code != http.StatusOK || !strings.Contains(body, "\nweir_services 3\n") {
			t.Errorf("%d %s", code, body)
		}
	})
}
