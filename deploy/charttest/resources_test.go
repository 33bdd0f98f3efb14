package charttest

import (
	"os"
	"regexp"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/resource"
)

// number is the number that a file of this repository has in place of the group of a
// pattern.
func number(t *testing.T, file, pattern string) int64 {
	t.Helper()
	text, err := os.ReadFile("../../" + file)
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(pattern).FindSubmatch(text)
	if m == nil {
		t.Fatalf("%s has no %s", file, pattern)
	}
	n, err := strconv.ParseInt(string(m[1]), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// Requests that are not given follow the configuration, by the sizes that Weir has.
func TestChartComputesRequests(t *testing.T) {
	const assumedFlowTable, rest = 410 << 20, 256 << 20
	perPort := number(t, "lb/workers.go", `framesPerPort = (\d+)`)
	spare := number(t, "lb/worker/new.go", `SpareFrames = (\d+)`)
	frame := number(t, "lb/xsk/umem.go", `FrameSize = (\d+)`)
	perFlow := number(t, "cmd/weir/config/README.md", `The memory, about (\d+) bytes each`)
	buffers := func(workers, interfaces, frame int64) int64 {
		return workers * ((interfaces+1)*perPort + spare) * frame // 1: the host veth
	}
	table := func(flows int64) int64 { return (flows*perFlow + 1<<20 - 1) >> 20 << 20 }
	for _, tt := range []struct {
		name, values string
		cpu          string
		memory       int64 // in bytes, 0: no request
	}{
		{"defaults", ``, "1500m", buffers(1, 1, frame) + assumedFlowTable + rest},
		{"workers", `config: {workers: {count: 4}}`, "4500m", buffers(4, 1, frame) + assumedFlowTable + rest},
		{"workers that Weir chooses", `config: {workers: {count: auto}, conntrack: {maxFlows: auto}}`, "1500m", buffers(1, 1, frame) + assumedFlowTable + rest},
		{"workers by their CPUs", `config: {workers: {cpus: "2-5,8"}}`, "5500m", buffers(5, 1, frame) + assumedFlowTable + rest},
		{"workers by a list of CPUs", `config: {workers: {cpus: [2, 3]}}`, "2500m", buffers(2, 1, frame) + assumedFlowTable + rest},
		{"workers by a list with ranges of CPUs", `config: {workers: {cpus: ["2-5", "8"]}}`, "5500m", buffers(5, 1, frame) + assumedFlowTable + rest},
		{"workers by a list of strings with spaces", `config: {workers: {cpus: ["2-3", " 8-9,11"]}}`, "5500m", buffers(5, 1, frame) + assumedFlowTable + rest},
		{"workers on CPUs that Weir chooses", `config: {workers: {cpus: auto}}`, "1500m", buffers(1, 1, frame) + assumedFlowTable + rest},
		{"a worker on CPU 0", `config: {workers: {cpus: 0}}`, "1500m", buffers(1, 1, frame) + assumedFlowTable + rest},
		{"fewer workers than CPUs", `config: {workers: {count: 2, cpus: "2-5"}}`, "2500m", buffers(2, 1, frame) + assumedFlowTable + rest},
		{"interfaces", `config: {workers: {count: 2}, interfaces: [{name: eth0}, {cidr: 192.0.2.0/24}, {defaultRoute: true}]}`, "2500m", buffers(2, 3, frame) + assumedFlowTable + rest},
		{"connections", `config: {conntrack: {maxFlows: 4000000}}`, "1500m", buffers(1, 1, frame) + table(4_000_000) + rest},
		{"connections, as a string", `config: {conntrack: {maxFlows: "40000000"}}`, "1500m", buffers(1, 1, frame) + table(40_000_000) + rest},
		{"the most connections", `config: {conntrack: {maxFlows: 1073741824}}`, "1500m", buffers(1, 1, frame) + table(1<<30) + rest},
		{"small frames", `config: {packetMemory: {frameSize: 2048}}`, "1500m", buffers(1, 1, frame/2) + assumedFlowTable + rest},
		{"a limit of memory stands for the request", `resources: {limits: {memory: 2Gi}}`, "1500m", 0},
		{"requests that are given", `resources: {requests: {cpu: 3, memory: 1Gi}}`, "3", 1 << 30},
		{"a request of CPUs alone", `resources: {requests: {cpu: 3}}`, "3", buffers(1, 1, frame) + assumedFlowTable + rest},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := daemonSet(t, mustTemplate(t, tt.values)).Spec.Template.Spec.Containers[0].Resources.Requests
			if want := resource.MustParse(tt.cpu); got.Cpu().Cmp(want) != 0 {
				t.Errorf("CPU %v, want %v", got.Cpu(), tt.cpu)
			}
			if diff := cmp.Diff(tt.memory, got.Memory().Value()); diff != "" {
				t.Errorf("memory, -want +got:\n%s", diff)
			}
		})
	}
}
