package pipeline

import (
	"bytes"
	"encoding/json"
	"slices"
	"testing"
)

// The form of the JSON is a contract.
func TestEveryKindIsMeasured(t *testing.T) {
	for _, proto := range []string{"udp", "tcp"} {
		t.Run(proto, func(t *testing.T) {
			var out bytes.Buffer
			cmd := Command()
			cmd.SetArgs([]string{"--flows", "1,2048", "--workers", "2", "--samples", "1", "--proto", proto, "--json"})
			cmd.SetOut(&out)
			cmd.SetErr(&bytes.Buffer{})
			if err := cmd.Execute(); err != nil {
				t.Fatal(err)
			}
			var got struct {
				Results []map[string]any   `json:"results"`
				Ratios  map[string]float64 `json:"ratios"`
			}
			if err := json.Unmarshal(out.Bytes(), &got); err != nil {
				t.Fatal(err)
			}
			var kinds []string
			for _, r := range got.Results {
				kinds = append(kinds, r["kind"].(string))
				for _, field := range []string{"mode", "flows", "nsPerPacket", "min", "max", "allocsPerPacket"} {
					if _, ok := r[field]; !ok {
						t.Errorf("a result has no %s: %v", field, r)
					}
				}
			}
			want := []string{"established", "established", "drop", "drop", "new", "established", "established", "drop", "drop"}
			if !slices.Equal(kinds, want) {
				t.Errorf("kinds %v, want %v", kinds, want)
			}
			if len(got.Ratios) != 4 {
				t.Errorf("ratios %v", got.Ratios)
			}
		})
	}
}

func TestWrongUsageIsSaid(t *testing.T) {
	for _, args := range [][]string{
		{"--flows", "0"}, {"--flows", "1,99999999"}, {"--mode", "teleport"}, {"--proto", "icmp"}, {"--workers", "0"}, {"--samples", "0"}, {"more"},
	} {
		cmd := Command()
		cmd.SetArgs(args)
		cmd.SetOut(&bytes.Buffer{})
		cmd.SetErr(&bytes.Buffer{})
		if cmd.Execute() == nil {
			t.Errorf("%v is taken", args)
		}
	}
}
