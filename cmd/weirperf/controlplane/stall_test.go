package controlplane

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// TestMain is the storm's server when the command starts itself as one.
func TestMain(m *testing.M) {
	if i := slices.IndexFunc(os.Args, func(a string) bool { return strings.HasPrefix(a, "--events=") }); i >= 0 && slices.Contains(os.Args, "--serve-storm") {
		events, _ := strconv.Atoi(strings.TrimPrefix(os.Args[i], "--events="))
		if err := serveStorm(context.Background(), events, os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func TestStallMeasuresEveryPart(t *testing.T) {
	cmd := StallCommand()
	out := &bytes.Buffer{}
	cmd.SetOut(out)
	cmd.SetErr(&bytes.Buffer{})
	cmd.SetArgs([]string{"--seconds", "0.2", "--services", "200", "--endpoints", "2000", "--events", "300", "--json"})
	if err := cmd.ExecuteContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	var got struct {
		Calm, Churn, Storm map[string]float64
		StormEvents        map[string]float64
	}
	if err := json.Unmarshal(out.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	for name, part := range map[string]map[string]float64{"calm": got.Calm, "churn": got.Churn, "storm": got.Storm} {
		for _, field := range []string{"lostPercent", "p99us", "maxus", "waitedPercent", "ownPercent"} {
			if v, ok := part[field]; !ok || v < 0 {
				t.Errorf("%s.%s is %v, there %v", name, field, v, ok)
			}
		}
		if part["lostPercent"] > 100 || part["roundNs"] <= 0 {
			t.Errorf("%s: %v", name, part)
		}
	}
	if got.StormEvents["storms"] < 1 || got.StormEvents["updates"] < 1 || got.StormEvents["megabytesPerSecond"] <= 0 {
		t.Errorf("storm: %v", got.StormEvents)
	}
}

func TestStallRefusesNonsense(t *testing.T) {
	for _, args := range [][]string{{"--seconds", "0"}, {"--events", "-1"}, {"--services", "0"}} {
		cmd := StallCommand()
		cmd.SetArgs(args)
		cmd.SilenceUsage, cmd.SilenceErrors = true, true
		if err := cmd.Execute(); err == nil || !strings.Contains(err.Error(), args[0]) {
			t.Errorf("%v: %v", args, err)
		}
	}
}
