package pipeline

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// script is a program that notes that it ran and prints a report with one figure
// per run, of values in turn.
func script(t *testing.T, name, log string, values ...float64) string {
	t.Helper()
	dir := t.TempDir()
	for i, v := range values {
		report := fmt.Sprintf(`{"results":[{"mode":"nat","flows":64,"kind":"established","workers":1,"nsPerPacket":%g}]}`, v)
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("report.%d", i)), []byte(report), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(dir, name)
	text := fmt.Sprintf("#!/bin/sh\necho %s \"$@\" >>%s\nn=$(grep -c '^%s ' %s)\ncat %s/report.$((n - 1))\n", name, log, name, log, dir)
	if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestBinariesAreMeasuredInTurn(t *testing.T) {
	log := filepath.Join(t.TempDir(), "log")
	c := comparison{
		self: script(t, "self", log, 10, 40, 15), baseline: script(t, "base", log, 20, 50, 20),
		o:        Options{Flows: []int{64, 128}, Mode: "nat", Proto: "udp", Workers: 1, Samples: 3, Turns: 3},
		progress: &bytes.Buffer{},
	}
	ratios, err := c.run(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	want := Ratio{Mode: "nat", Flows: 64, Kind: "established", Workers: 1, NsPerPacket: 15, BaselineNsPerPacket: 20,
		Ratio: 0.75, Min: 0.5, Max: 0.8, Turns: 3}
	if len(ratios) != 1 || ratios[0] != want {
		t.Errorf("ratios %+v, want %+v", ratios, want)
	}
	text, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	const flags = " pipeline --json --flows 64,128 --mode nat --proto udp --workers 1 --samples 3"
	var order []string
	for line := range strings.Lines(string(text)) {
		name, ok := strings.CutSuffix(strings.TrimSpace(line), flags)
		if !ok {
			t.Errorf("run as %q, want the flags %q", line, flags)
		}
		order = append(order, name)
	}
	if got := strings.Join(order, " "); got != "base self self base base self" {
		t.Errorf("order %s", got)
	}
}

func TestABaselineThatFailsIsNamed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "broken")
	if err := os.WriteFile(path, []byte("#!/bin/sh\necho progress >&2\necho out of memory >&2\nexit 1\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	c := comparison{self: path, baseline: path, o: Options{Turns: 1}, progress: &bytes.Buffer{}}
	_, err := c.run(context.Background())
	if err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "out of memory") {
		t.Errorf("error %v, want one with %s and its last words", err, path)
	}
}

// An older binary has fewer kinds of figures.
func TestFiguresThatTheBaselineLacksAreLeftOut(t *testing.T) {
	figure := func(kind string) Result {
		return Result{Mode: "nat", Flows: 64, Kind: kind, Workers: 1, NsPerPacket: 1}
	}
	own := []*Report{{Results: []Result{figure(kindNew), figure(kindEarly)}}}
	ratios, err := compare(own, []*Report{{Results: []Result{figure(kindNew)}}})
	if err != nil || len(ratios) != 1 || ratios[0].Kind != kindNew {
		t.Errorf("%v, error %v", ratios, err)
	}
	if _, err := compare(own, []*Report{{}}); err == nil || !strings.Contains(err.Error(), "baseline") {
		t.Errorf("nothing in common: error %v", err)
	}
	own, base := append(own, own[0]), []*Report{{Results: own[0].Results}, {}}
	if _, err := compare(own, base); err == nil || !strings.Contains(err.Error(), "baseline") {
		t.Errorf("a turn without the figure: error %v", err)
	}
}

func TestABaselineThatIsNoProgramIsRefused(t *testing.T) {
	cmd := Command()
	cmd.SetArgs([]string{"--baseline", "/does/not/exist"})
	cmd.SetOut(&bytes.Buffer{})
	cmd.SetErr(&bytes.Buffer{})
	if err := cmd.Execute(); err == nil || !strings.Contains(err.Error(), "--baseline: /does/not/exist") {
		t.Errorf("error %v", err)
	}
}
