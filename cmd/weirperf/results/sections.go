package results

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/weirlb/weir/perf/report"
)

func (p *page) ratios(r map[string]float64) {
	if len(r) == 0 {
		return
	}
	p.line("| Ratio | |\n| --- | --- |")
	for _, name := range slices.Sorted(maps.Keys(r)) {
		p.line("| %s | %.2f |", name, r[name])
	}
	p.line("")
}

// pipeline shows the packet path in memory.
func (p *page) pipeline(b []byte) error {
	var r struct {
		Results []struct {
			Mode, Kind                             string
			Flows, Workers                         int
			NsPerPacket, Min, Max, AllocsPerPacket float64
		}
		Ratios map[string]float64
	}
	if err := json.Unmarshal(b, &r); err != nil {
		return err
	}
	p.line("## In memory\n\n`weirperf pipeline`: the whole packet path without input and output, net of making packets.\n")
	p.ratios(r.Ratios)
	c := report.Chart{Title: "Packet path in memory: time per packet", Unit: "ns", Note: "less is better; lines: least to most of all samples"}
	p.line("| Mode | Kind | Connections | Workers | ns per packet | least..most | allocations |\n| --- | --- | --- | --- | --- | --- | --- |")
	for _, x := range r.Results {
		p.line("| %s | %s | %d | %d | %.1f | %.1f..%.1f | %g |", x.Mode, x.Kind, x.Flows, max(1, x.Workers), x.NsPerPacket, x.Min, x.Max, x.AllocsPerPacket)
		c.Bars = append(c.Bars, report.Bar{Group: fmt.Sprintf("%s, %s", x.Mode, x.Kind), Series: fmt.Sprint(x.Flows), Value: x.NsPerPacket, Min: x.Min, Max: x.Max})
	}
	p.line("")
	slices.SortStableFunc(c.Bars, func(a, b report.Bar) int {
		if a.Group == b.Group {
			return 0
		}
		return len(a.Group) - len(b.Group)
	})
	return p.chart("pipeline.svg", c)
}

// table shows the control plane.
func (p *page) table(b []byte) error {
	var r struct {
		Services, Endpoints                                                            int
		BuildSeconds, ChangeP50us, ChangeP99us, ChangeAllocBytes, HeapBytesPerEndpoint float64
	}
	if err := json.Unmarshal(b, &r); err != nil {
		return err
	}
	p.line("## Control plane\n\n`weirperf table`: %d Services, %d endpoints.\n", r.Services, r.Endpoints)
	p.line("| | |\n| --- | --- |")
	p.line("| build of everything | %.2f s |", r.BuildSeconds)
	p.line("| one changed slice to the published snapshot | %.0f us median, %.0f us p99 |", r.ChangeP50us, r.ChangeP99us)
	p.line("| its allocation | %.1f kB |", r.ChangeAllocBytes/1e3)
	p.line("| heap per endpoint | %.0f bytes |\n", r.HeapBytesPerEndpoint)
	return nil
}

// stall shows the cost of the control plane to a worker.
func (p *page) stall(b []byte) error {
	type part struct{ LostPercent, P99us, Maxus, OwnPercent, BeyondCalmPercent float64 }
	var r struct{ Calm, Churn, Storm *part }
	if err := json.Unmarshal(b, &r); err != nil {
		return err
	}
	p.line("## What the control plane costs a worker\n\n`weirperf stall`: time in rounds of more than 10 us.\n")
	p.line("| | lost | p99 | longest | lost beyond calm |\n| --- | --- | --- | --- | --- |")
	for _, x := range []struct {
		name string
		*part
	}{{"calm", r.Calm}, {"churn", r.Churn}, {"storm", r.Storm}} {
		if x.part != nil {
			p.line("| %s | %.2f %% | %.0f us | %.0f us | %.2f %% |", x.name, x.LostPercent, x.P99us, x.Maxus, x.BeyondCalmPercent)
		}
	}
	p.line("")
	return nil
}
