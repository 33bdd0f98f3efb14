package results

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestReportIsMadeOfWhatIsThere(t *testing.T) {
	dir := t.TempDir()
	if err := write(dir, "make bench"); err == nil {
		t.Error("a report of nothing")
	}
	for name, text := range map[string]string{
		"forward.json": `{"machine":{"cpu":"Slowpoke","cpus":2},"command":"weirperf forward --json","endpoints":256,"seconds":1,"results":[
			{"peer":"weir","workload":"udp-established","setting":"threaded","flows":100000,"turns":5,"nsPerPacket":1000,"min":900,"max":1100,"mpps":0.9},
			{"peer":"nftables","workload":"udp-established","setting":"threaded","flows":100000,"turns":5,"nsPerPacket":2500,"min":2400,"max":2600},
			{"peer":"weir","workload":"tcp-request","setting":"threaded","flows":16,"turns":5,"perSecond":10500,"p99us":1000},
			{"peer":"nginx","workload":"tcp-request","setting":"threaded","flows":16,"turns":5,"perSecond":7000,"p99us":500}]}`,
		"pipeline.json": `{"results":[{"mode":"nat","kind":"established","flows":65536,"nsPerPacket":22.1,"min":21,"max":23,"allocsPerPacket":0}]}`,
		"stall.json":    `{"calm":{"lostPercent":1.5,"p99us":20,"maxus":90},"churn":{"lostPercent":2.5,"p99us":30,"maxus":100}}`,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := write(dir, "make bench"); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(filepath.Join(dir, "report.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []string{"`make bench`", "Machine: Slowpoke, 2 CPUs", "### Setting `threaded`",
		"| UDP, 100,000 connections: ns per packet (less is better) | 1,000 | 2,500 (2.50) |  |  |  |",
		"requests per second (more is better) | 10,500 |  |  |  | 7,000 (1.50) |",
		"us (less is better) | 1,000 |  |  |  | 500 (0.50) |", "| weir | 1000 | 0.900 |", "(forward-threaded.svg)",
		"| nat | established | 65536 | 1 | 22.1 |", "| churn | 2.50 % |"} {
		if !strings.Contains(string(b), s) {
			t.Errorf("the report lacks %q:\n%s", s, b)
		}
	}
	if strings.Contains(string(b), "Control plane\n") || strings.Contains(string(b), "`default`") {
		t.Error("the report has what was not measured")
	}
	for _, name := range []string{"forward-threaded.svg", "pipeline.svg"} {
		if svg, err := os.ReadFile(filepath.Join(dir, name)); err != nil || !strings.HasSuffix(string(svg), "</svg>\n") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestDamagedResultsAreNamed(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "table.json"), []byte("{"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := write(dir, ""); err == nil || !strings.Contains(err.Error(), "table.json") {
		t.Errorf("%v", err)
	}
}
