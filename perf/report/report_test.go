package report

import (
	"math"
	"testing"
)

func TestMedian(t *testing.T) {
	for _, c := range []struct {
		in   []float64
		want float64
	}{{[]float64{3}, 3}, {[]float64{5, 1, 3}, 3}, {[]float64{4, 1, 3, 2}, 2.5}} {
		if got := Median(c.in); got != c.want {
			t.Errorf("median of %v is %v, want %v", c.in, got, c.want)
		}
	}
	if !math.IsNaN(Median(nil)) {
		t.Error("median of nothing")
	}
}

func TestSummaryIsTheMedianOfTurnsWithTheirSpread(t *testing.T) {
	turn := func(ns float64) Turn {
		return Turn{Seconds: 2, Packets: 1e6, Bytes: 60e6, CPUSeconds: ns / 1e3, Lost: 1e6}
	}
	r := Summarize(Key{Peer: "weir", Workload: Established}, []Turn{turn(900), turn(1200), turn(800)})
	if r.NsPerPacket != 900 || r.Min != 800 || r.Max != 1200 || r.Mpps != 0.5 || r.Turns != 3 {
		t.Errorf("%+v", r)
	}
	if r.LostPercent != 50 || r.CPUSecondsPerMillion != 0.9 || math.Abs(r.CPUSecondsPerGB-15) > 1e-9 {
		t.Errorf("%+v", r)
	}
	c := Summarize(Key{Workload: Connect}, []Turn{{PerSecond: 10}, {PerSecond: 30}, {PerSecond: 20}})
	if c.Main() != 20 || c.Min != 10 || c.Max != 30 || c.NsPerPacket != 0 {
		t.Errorf("%+v", c)
	}
}

// A rate is limited by the core without time left. There is no ratio of a rate that clients limit.
func TestRatesSayWhatLimitsThem(t *testing.T) {
	at := func(peer string, balancer, client float64) Result {
		return Summarize(Key{Peer: peer, Workload: Connect}, []Turn{{PerSecond: 10, LBBusy: balancer, LoadBusy: client}})
	}
	for _, c := range []struct {
		balancer, client float64
		want             Limit
		ratio            bool
	}{
		{1, 0.4, ByBalancer, true}, {0.97, 1, ByBoth, true}, {0.6, 0.99, ByClient, false}, {0.6, 0.7, ByWaiting, true},
	} {
		r := at("weir", c.balancer, c.client)
		_, ratio := Ratios([]Result{r, at("nftables", 1, 0.5)}, "weir")["tcp-connect weir/nftables"]
		if r.LimitedBy != c.want || ratio != c.ratio {
			t.Errorf("busy %v, %v: limit %s, ratio %v, want %s, %v", c.balancer, c.client, r.LimitedBy, ratio, c.want, c.ratio)
		}
	}
	if r := Summarize(Key{Workload: Established}, []Turn{{Packets: 1}}); r.LimitedBy != "" {
		t.Errorf("a cost has limit %s", r.LimitedBy)
	}
}

func TestRatiosCompareWhatWasMeasuredAlike(t *testing.T) {
	at := func(peer, setting string, flows int, ns float64) Result {
		return Result{Key: Key{Peer: peer, Workload: Established, Setting: setting, Flows: flows}, NsPerPacket: ns}
	}
	r := Ratios([]Result{
		at("weir", "threaded", 10000, 500), at("nftables", "threaded", 10000, 2000),
		at("weir", "threaded", 100000, 1000), at("nftables", "threaded", 100000, 2000),
		at("weir", "threaded", 1000000, 1000), at("nftables", "threaded", 1000000, 6000),
		at("weir", "default", 100000, 1000), at("nftables", "default", 100000, 1500),
		{Key: Key{Peer: "weir", Workload: Connect}, PerSecond: 10}, {Key: Key{Peer: "nftables", Workload: Connect}, PerSecond: 20},
	}, "weir")
	for name, want := range map[string]float64{
		"udp-established weir/nftables":                        2, // 100,000 flows, first setting
		"udp-established weir/nftables 10000 flows threaded":   4,
		"udp-established weir/nftables 1000000 flows threaded": 6,
		"udp-established weir/nftables 100000 flows default":   1.5,
		"tcp-connect weir/nftables":                            0.5,
	} {
		if r[name] != want {
			t.Errorf("%s is %v, want %v", name, r[name], want)
		}
	}
	if len(r) != 6 {
		t.Errorf("%v", r)
	}
}

func TestResultsAreShownInOrder(t *testing.T) {
	r := []Result{
		{Key: Key{Peer: "a", Workload: New, Setting: "default"}}, {Key: Key{Peer: "b", Workload: New, Setting: "threaded"}},
		{Key: Key{Peer: "a", Workload: Established, Setting: "threaded", Flows: 2}}, {Key: Key{Peer: "b", Workload: Established, Setting: "threaded", Flows: 1}},
		{Key: Key{Peer: "a", Workload: Established, Setting: "threaded", Flows: 1}},
	}
	Sort(r, []string{"b", "a"})
	got := ""
	for _, x := range r {
		got += x.Peer + x.Workload[4:5] + x.Setting[:1] + " "
	}
	if got != "bet aet aet bnt and " {
		t.Errorf("%s", got)
	}
}
