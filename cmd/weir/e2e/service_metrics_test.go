package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
)

// The metrics have the traffic, the refused packets and the endpoints of each Service.
func TestWireMetricsPerService(t *testing.T) {
	f := ownFixture(t, options{services: []service{toAttached, toNothing}, extra: "metricsBindAddress: 127.0.0.1:9464"})
	const exchanges = 3
	for i := range exchanges {
		must(t, f.exchangeOnce(toAttached, i%2 == 1))
	}
	if err := f.exchangeOnce(toNothing, false); err == nil {
		t.Error("a Service without endpoints answers")
	}
	must(t, f.poll(func(context.Context) error {
		metrics := f.metrics(t)
		for _, line := range []string{
			fmt.Sprintf("weir_service_new_connections_total{service=%q} %d", "test/attached", exchanges),
			fmt.Sprintf("weir_service_dropped_packets_total{reason=%q,service=%q} 1", "no-endpoint", "test/nothing"),
			fmt.Sprintf("weir_service_packets_total{from=%q,service=%q} ", "endpoint", "test/attached"),
			fmt.Sprintf("weir_service_handshake_duration_seconds_count{service=%q} ", "test/attached"),
			fmt.Sprintf("weir_service_endpoints{service=%q,tier=", "test/attached"),
		} {
			if !strings.Contains(metrics, line) {
				return fmt.Errorf("the metrics have no %s:\n%s", line, linesWith(metrics, "weir_service_"))
			}
		}
		return nil
	}))
}

func linesWith(text, part string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		if strings.Contains(line, part) {
			b.WriteString(line)
		}
	}
	return b.String()
}
