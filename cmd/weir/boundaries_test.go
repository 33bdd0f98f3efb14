package main

const protocolMachine = "a function of a state word and a packet: no table, no clock"

// boundaries are the rules for imports, by folder.
var boundaries = []boundary{
	{
		folder: "topology", why: "a pure function: standard library only",
		only: []string{}, imports: []string{"net", "os", "time"},
	},
	{
		folder: "discovery", why: "it does not know how packets are forwarded",
		never: []string{"lb", "conntrack", "cmd", "perf"},
	},
	{
		folder: "discovery/addresspool", why: "a choice from statuses and pools: standard library and names alone",
		only: []string{module + "/discovery/similar"}, imports: []string{"net", "os"},
	},
	{
		folder: "discovery/gateway", why: "a pure function of objects: who reads and writes them is elsewhere",
		own: []string{"discovery", "discovery/addresspool", "discovery/probe", "discovery/similar", "topology"}, imports: []string{"net", "os"},
	},
	{folder: "discovery/kube/client", why: "it does not know what the objects mean", own: []string{}},
	{
		folder: "discovery/probe", why: "a text and its rules: no probe is sent here",
		own: []string{"discovery/similar"}, imports: []string{"net", "os"},
	},
	{
		folder: "discovery/prober", why: "it sends probes, whoever asks for them and whatever follows",
		own: []string{"discovery/probe", "discovery/similar"}, importers: []string{"cmd/weir", "cmd/weirperf/controlplane"}, tests: []string{"cmd/weir/endpointhealth"},
	},
	{
		folder: "conntrack", why: "a leaf: standard library and golang.org/x/sys only",
		only: []string{"golang.org/x/sys"},
	},
	{folder: "conntrack/flowstate", why: "questions to a word: standard library only", only: []string{}, imports: []string{"net", "os"}},
	{folder: "conntrack/tcp", why: protocolMachine, only: []string{module + "/conntrack/flowstate"}, imports: []string{"net", "os", "time"}},
	{folder: "conntrack/sctp", why: protocolMachine, only: []string{module + "/conntrack/flowstate"}, imports: []string{"net", "os", "time"}},
	{folder: "conntrack/udp", why: protocolMachine, only: []string{module + "/conntrack/flowstate"}, imports: []string{"net", "os", "time"}},
	{folder: "conntrack/memory", why: "it does not know what is in the memory", only: []string{"golang.org/x/sys"}, imports: []string{"net"}},
	{folder: "conntrack/schema", why: "a text about records: standard library only", only: []string{}, imports: []string{"net", "os"}},
	{
		folder: "conntrack/conntracktest", why: "tables for tests are not linked into weir",
		own: []string{"conntrack/schema"}, importers: []string{"conntrack"}, tests: []string{"conntrack", "lb", "cmd"},
	},
	{folder: "conntrack/statefile", why: "it does not know what is in the files", only: []string{"golang.org/x/sys"}},
	{
		folder: "lb", why: "it does not know Kubernetes or the source of Services",
		never: []string{"discovery", "topology", "cmd", "perf", "k8s.io", "sigs.k8s.io"},
	},
	{
		folder: "lb/header", why: "it reads and writes bytes: standard library only",
		only: []string{}, imports: []string{"net", "os", "sync"},
	},
	{
		folder: "lb/table", why: "snapshots know neither packets nor the kernel",
		own: []string{"conntrack"}, imports: []string{"net", "os"},
	},
	{folder: "lb/attempts", why: "counts by number: standard library only", only: []string{}, imports: []string{"net", "os"}},
	{folder: "lb/denylist", why: "addresses and a text, in memory: standard library only", only: []string{}, imports: []string{"net", "os", "sync"}},
	{folder: "lb/affinity", why: "keys and values are the caller's", only: []string{}},
	{
		folder: "lb/snat", why: "a choice from a snapshot: no sockets, no devices",
		own: []string{"conntrack", "lb/route", "lb/table"}, imports: []string{"net", "os"},
	},
	{folder: "lb/localports", why: "sockets and sysctls: it does not know whose the ports are to be", own: []string{"conntrack"}},
	{
		folder: "lb/fragtrack", why: "it has no packets",
		own: []string{"conntrack", "lb/header"}, imports: []string{"net", "os"},
	},
	{
		folder: "lb/worker", why: "it does not know who opens its ports and publishes its snapshots",
		own: []string{"conntrack", "lb/affinity", "lb/attempts", "lb/counter", "lb/denylist", "lb/fragtrack", "lb/handoff", "lb/header",
			"lb/pcapfilter", "lb/ratelimit", "lb/route", "lb/snat", "lb/table", "lb/tap", "lb/xsk"},
		imports: []string{"net", "github.com/vishvananda/netlink"}, importers: []string{"lb", "cmd"}, tests: []string{"lb", "cmd"},
	},
	{
		folder: "lb/announce", why: "a rule over values: standard library only",
		alone: true, only: []string{}, imports: []string{"net", "os"}, importers: []string{"cmd/weir", "lb/announce"}, tests: []string{"cmd", "lb/announce"},
	},
	{folder: "lb/announce/routes", why: "routes of a table: it knows neither frontends nor endpoints", own: []string{"lb/announce"}},
	{
		folder: "lb/announce/bgp", why: "routes and sessions: it knows neither frontends nor endpoints",
		own: []string{"lb/announce"},
	},
	{
		folder: "lb/announce/l2", why: "owners of addresses on a link: it knows neither frontends nor endpoints",
		own: []string{"lb/header", "lb/notice"},
	},
	{
		folder: "lb/reassign", why: "flows get other numbers by tables alone",
		own: []string{"conntrack", "lb/header", "lb/table"}, imports: []string{"net", "os"},
	},
	{
		folder: "lb/lbtest", why: "queues for tests are not linked into weir",
		own: []string{"lb/xsk"}, importers: []string{"cmd/weirperf"}, tests: []string{"lb"},
	},
	{folder: "lb/pcapfilter", why: "a language: standard library only", only: []string{}, imports: []string{"net", "os"}},
	{
		folder: "lb/tap", why: "copies between a worker and a reader: it knows neither",
		own: []string{"lb/pcapfilter"}, imports: []string{"net", "os"},
	},
	{
		folder: "lb/ratelimit", why: "it does not know what is limited",
		own: []string{"conntrack"}, imports: []string{"net", "os"},
	},
	{
		folder: "lb/handoff", why: "it passes frame descriptors: no packets, no workers",
		own: []string{"lb/xsk"}, imports: []string{"net", "os"},
	},
	{
		folder: "lb/frontends", why: "it follows published tables: no packets, no workers, no devices",
		own: []string{"conntrack", "lb/aligned", "lb/header", "lb/route", "lb/steer", "lb/table", "lb/xsk"},
	},
	{
		folder: "lb/ports", why: "it attaches interfaces: no packets, no workers",
		own: []string{
			"conntrack/statefile",
			"lb/device", "lb/header", "lb/route", "lb/steer", "lb/uppair", "lb/vethpair",
			"lb/warning", "lb/xsk",
		},
	},
	{folder: "lb/ports/absence", why: "names of interfaces, and reasons", own: []string{"lb/warning"}, imports: []string{"net", "os"}},
	{
		folder: "lb/ports/offload", why: "settings of NICs: it knows no ports",
		own: []string{"conntrack/statefile", "lb/header", "lb/steer", "lb/xsk"},
	},
	{folder: "lb/phase", why: "a list of times", only: []string{}},
	{folder: "lb/aligned", why: "times alone: standard library only", only: []string{}, imports: []string{"net", "os"}},
	{folder: "lb/notice", why: "it does not read what the kernel notifies of", only: []string{"golang.org/x/sys"}},
	{folder: "lb/warning", why: "a list of texts", only: []string{}},
	{folder: "lb/counter", why: "a list: standard library only", only: []string{}, imports: []string{"sync/atomic"}},
	{folder: "lb/device", why: "pure functions over links", own: []string{}},
	{folder: "lb/xsk", why: "it does not read packets", only: []string{"golang.org/x/sys"}},
	{folder: "lb/steer", why: "it does not choose endpoints", own: []string{"conntrack/statefile", "lb/header", "lb/xsk"}},
	{
		folder: "lb/flowcache", why: "memory and its layout: it knows neither frontends nor packets",
		own: []string{"conntrack", "lb/route"},
	},
	{folder: "lb/route", why: "the kernel is the only source of routes", own: []string{}},
	{
		folder: "lb/hostveth", why: "links, rules and sysctls: it sees no packets",
		own: []string{"conntrack/statefile", "lb/aligned", "lb/markrule", "lb/notice", "lb/route", "lb/vethpair"},
	},
	{
		folder: "lb/probepath", why: "connections of the node's own, whatever they ask: no packet of a client",
		own: []string{"conntrack", "lb/header", "lb/markrule", "lb/route", "lb/vethpair"}, importers: []string{"cmd/weir"}, tests: []string{"lb"},
	},
	{folder: "lb/markrule", why: "rules and tables: it knows no use of them", own: []string{"lb/route"}},
	{folder: "lb/vethpair", why: "two links and their names", own: []string{}},
	{
		folder: "lb/uppair", why: "links alone: it attaches no program and opens no socket",
		own: []string{"lb/vethpair"},
	},
	{
		folder: "cmd/weir", why: "libraries are in the other folders",
		importers: []string{"cmd"}, tests: []string{"cmd", "deploy"},
	},
	{
		folder: "cmd/weir/announcer", why: "it announces what it is told of node and tables, whoever tells it",
		never: []string{"cmd/weir/daemon", "perf"}, importers: []string{"cmd/weir"},
	},
	{
		folder: "cmd/weir/source", why: "it delivers Services, whoever takes them",
		never: []string{"cmd/weir/daemon", "cmd/weir/announcer", "perf"}, importers: []string{"cmd/weir"},
		tests: []string{"cmd/weir/daemon", "cmd/weir/process", "cmd/weir/publisher"},
	},
	{
		folder: "cmd/weir/answers", why: "it reads the state of parts, whoever wires them",
		never: []string{"cmd/weir/daemon", "perf"}, importers: []string{"cmd/weir/daemon"},
	},
	{
		folder: "cmd/weir/endpointhealth", why: "it finds out which endpoints work, whoever chooses and publishes",
		never: []string{"cmd/weir/answers", "cmd/weir/changes", "cmd/weir/daemon", "lb/worker", "perf"}, importers: []string{"cmd/weir"},
		tests: []string{"cmd/weir/changes", "cmd/weir/publisher"},
	},
	{
		folder: "cmd/weir/publisher", why: "it publishes what it is delivered, whoever wires it",
		never: []string{"cmd/weir/announcer", "cmd/weir/answers", "cmd/weir/daemon", "perf"}, importers: []string{"cmd/weir/daemon"},
	},
	{
		folder: "cmd/weir/changes", why: "it compares, and tells what has changed, whoever publishes",
		never: []string{"cmd/weir/answers", "cmd/weir/daemon", "perf"}, importers: []string{"cmd/weir/daemon", "cmd/weir/publisher"},
	},
	{
		folder: "cmd/weir/drains", why: "it remembers drains, whoever publishes",
		never: []string{"cmd/weir/answers", "cmd/weir/daemon", "perf"}, importers: []string{"cmd/weir"},
		tests: []string{"cmd/weir/publisher"},
	},
	{
		folder: "cmd/weir/complaints", why: "it asks parts for problems, whoever wires them",
		never: []string{"cmd/weir/answers", "cmd/weir/daemon", "perf"}, importers: []string{"cmd/weir/daemon", "cmd/weir/publisher"},
	},
	{
		folder: "cmd/weir/process", why: "it ends and watches a process, whatever that serves",
		never: []string{"cmd/weir/answers", "cmd/weir/daemon", "perf"}, importers: []string{"cmd/weir"},
	},
	{
		folder: "cmd/weir/flowlog", why: "it sends records of a flow table, whoever fills it",
		never: []string{"cmd/weir/answers", "cmd/weir/daemon", "lb/worker"}, importers: []string{"cmd/weir/answers", "cmd/weir/daemon"}, tests: []string{"cmd/weir/e2e"},
	},
	{folder: "cmd/weir/flowlog/ipfix", why: "bytes of messages: standard library only", only: []string{}, imports: []string{"net", "os"}},
	{folder: "cmd/weir/connections", why: "it answers from a flow table, whoever fills it",
		never: []string{"cmd/weir/daemon", "lb/worker"}, importers: []string{"cmd/weir/answers", "cmd/weir/process", "cmd/weirperf"}},
	{
		folder: "cmd/weir/controller", why: "it writes statuses of Services: it sees no packets and no node",
		own: []string{
			"cmd/weir/config", "cmd/weir/httpserver", "cmd/weir/poolfile", "conntrack/statefile", "discovery", "lb/announce", "topology",
		},
		importers: []string{"cmd/weir"},
	},
	{
		folder: "cmd/weir/doctor/kubeproxy", why: "it reads the rules of another: it does not know Weir",
		own: []string{}, importers: []string{"cmd/weir/doctor"}, tests: []string{"cmd/weir/doctor"},
	},
	{
		folder: "cmd/weir/statuspage", why: "all that the page has is in answers of the API",
		own: []string{
			"cmd/weir/api", "cmd/weir/event", "cmd/weir/httpserver", "cmd/weir/pcapng", "cmd/weir/privilege", "cmd/weir/problem",
			"cmd/weir/version", "cmd/weir/view", "conntrack/statefile", "lb/counter",
		},
		importers: []string{"cmd/weir/daemon"},
	},
	{
		folder: "cmd/weir/top", why: "all that the view has is in answers of the API",
		own: []string{
			"cmd/weir/api", "cmd/weir/event", "cmd/weir/httpserver", "cmd/weir/pcapng", "cmd/weir/privilege", "cmd/weir/problem", "cmd/weir/version", "cmd/weir/view",
			"conntrack/statefile", "lb/counter",
		},
		importers: []string{"cmd/weir"},
	},
	{
		folder: "cmd/weirperf", why: "measurements have no users",
		importers: []string{"cmd/weirperf"},
	},
	{
		folder: "perf", why: "for tests, the demo and measurements; never in the packet path",
		own: []string{}, importers: []string{"cmd/weirperf"},
		tests: []string{"cmd", "deploy", "discovery", "lb"},
	},
	{
		folder: "perf/browser", why: "a browser is for tests alone",
		own: []string{"perf"}, importers: []string{}, tests: []string{"cmd"},
	},
	{
		folder: "cmd/weir", why: "a privileged program is not linked with tools for tests",
		never: []string{"cmd/weirperf", "perf"},
	},
	{
		folder: "cmd/weir", why: "every group of the API would be a third of the binary: discovery/kube/client has those in use",
		never: []string{"k8s.io/client-go/applyconfigurations", "k8s.io/client-go/informers", "k8s.io/client-go/kubernetes"},
	},
}
