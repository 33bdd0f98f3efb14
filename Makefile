# Weir. `make help` lists the targets.

SHELL       := /bin/bash
.SHELLFLAGS := -o pipefail -c
.DEFAULT_GOAL := help

GO       ?= go
BIN      := bin
RESULTS  := $(BIN)/test
TESTSUM  := $(BIN)/testsum
FUZZTIME ?= 3s
BENCH    ?= .
COUNT    ?= 1
# Of one package's tests: several times what the slowest takes on a quiet machine. It
# ends what hangs; the tests' own waits follow the machine (perf/netlab/patience).
TIMEOUT  ?= 60m
MINUTES  ?= 10
# Of `make deb`, `make release` and `make appliance`, such as 1.2.3; empty is that of the revision.
VERSION  ?=
# More arguments of deploy/release, such as --modified.
RELEASE  ?=
# How often `make kills` kills.
KILLS    ?= 10
# How often `make crashes` kills.
CRASHES  ?= 1000
TRACES   ?= 1000
# Of the faults of `make soak`; HOOK=off, xdp or auto replaces its choice of a hook, and
# SOURCE=api or manifests that of where Weir learns Services.
SEED     ?= 1
HOOK     ?=
SOURCE   ?=
# Of `make fleet-scale`. A process has at most as many as its limit of open files allows.
CONNECTIONS ?= 10000
# Of `make fleet-changes`.
CHANGES  ?= 1000
# How often `make deaths` ends each process.
DEATHS   ?= 10

# Every stage but the race detector's builds with the same settings, those of the release:
# a dependency is compiled once, not once for the binary and once for the tests.
export CGO_ENABLED := 0
export GOFLAGS     := $(strip -trimpath $(filter-out -trimpath,$(GOFLAGS)))

# The revision is stamped where git answers for this tree.
BUILDVCS := $(shell git rev-parse HEAD >/dev/null 2>&1 && echo auto || echo false)

# Packages of commands that are not in ./...
TOOLS := ./.ci/testsum ./.ci/prose

# Packages whose code or tests start goroutines. The others have no race of their own, and are
# instrumented where these import them. Left out are rings shared with the kernel, since the race
# detector does not see the other side and takes its memory for ours, and the tests of whole
# processes, which are wire tests.
RACE_PACKAGES = $$(grep -rlE --include='*.go' --exclude-dir=charttest --exclude-dir=release --exclude-dir=kubeenv --exclude-dir=conformance '^\s*go (func|[a-zA-Z_.]+\()|"sync(/atomic)?"|t\.Parallel\(' cmd conntrack deploy discovery lb perf topology | \
	xargs -n1 dirname | sort -u | grep -vE '^(lb/xsk|cmd/weir/e2e.*)$$' | sed 's|^|./|')

# What `make generate` writes.
GENERATED = $(wildcard lb/steer/bpf/flowtable.h lb/steer/*_bpfel.* lb/steer/*_bpfeb.* perf/*/*_bpfel.* perf/*/*_bpfeb.* cmd/weir/README.md cmd/weir/api/openapi.json cmd/weir/config/README.md cmd/weir/metrics/README.md cmd/weir/problem/README.md deploy/helm/weir/README.md deploy/helm/weir/crds/weir.dev.yaml deploy/kustomize/crds/weir.dev.yaml)

# Tests share the machine: -j must not run them side by side.
.NOTPARALLEL:

.PHONY: help
help: ## Show this help
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: build
build: ## Build bin/weir and bin/weirperf, static
	$(GO) build -buildvcs=$(BUILDVCS) -o $(BIN)/ ./cmd/...

.PHONY: demo
demo: build ## Show Weir at work, in network namespaces of its own (root)
	$(BIN)/weirperf demo

.PHONY: demo-fleet
demo-fleet: build ## Show several Weirs, of which some leave and return: behind a router, and on a LAN without (root; installs FRR)
	@.ci/programs frr
	$(BIN)/weirperf demo fleet
	$(BIN)/weirperf demo lan

##
.PHONY: test
test: ## Everything: unit, property, race, fuzz smoke, wire (root), cluster, deployment; ends with the sum
	@rm -rf $(RESULTS)
	@$(MAKE) --no-print-directory run-unit run-race run-fuzz run-wire run-kube run-chart run-release
	@$(TESTSUM) report -dir $(RESULTS)

.PHONY: test-unit
test-unit: ## Unit and property tests; neither root nor network
	@rm -rf $(RESULTS)
	@$(MAKE) --no-print-directory run-unit
	@$(TESTSUM) report -dir $(RESULTS)

.PHONY: test-race
test-race: ## Unit tests under the race detector
	@rm -rf $(RESULTS)
	@$(MAKE) --no-print-directory run-race
	@$(TESTSUM) report -dir $(RESULTS)

.PHONY: test-wire
test-wire: ## Real packets through namespaces and the kernel's TCP (root)
	@rm -rf $(RESULTS)
	@$(MAKE) --no-print-directory run-wire
	@$(TESTSUM) report -dir $(RESULTS)

.PHONY: test-kube
test-kube: ## Against a real API server and its controllers (wire parts: root)
	@rm -rf $(RESULTS)
	@$(MAKE) --no-print-directory run-kube
	@$(TESTSUM) report -dir $(RESULTS)

.PHONY: test-deploy
test-deploy: ## Chart, kustomize base, image, systemd unit: rendered, applied, run (root)
	@rm -rf $(RESULTS)
	@$(MAKE) --no-print-directory run-deploy run-chart run-release
	@$(TESTSUM) report -dir $(RESULTS)

.PHONY: test-vm
test-vm: build ## On other kernels and NICs, in virtual machines (KERNELS=6.1,6.12 CASES='nic-*')
	$(BIN)/weirperf vm $(if $(KERNELS),--kernels $(KERNELS)) $(if $(CASES),--cases '$(CASES)') --results perf/results

.PHONY: test-vm-short
test-vm-short: build ## The short form of test-vm: two kernels, the cases marked Short
	$(BIN)/weirperf vm --short

APPLIANCE := $(BIN)/appliance
PACK = $(if $(VERSION),--version $(VERSION)) $(RELEASE)

.PHONY: appliance
appliance: ## Build a disk image that boots into Weir, and the update to it, into bin/appliance (root; installs mmdebstrap)
	@.ci/programs mmdebstrap=mmdebstrap squashfs-tools=mksquashfs dosfstools=mkfs.vfat mtools=mcopy e2fsprogs=mkfs.ext4 \
		fdisk=sfdisk debian-archive-keyring=/usr/share/keyrings/debian-archive-keyring.gpg
	GOWORK=off $(GO) -C deploy/release run . --arch amd64 --formats deb --out ../../$(APPLIANCE)/package $(PACK)
	$(GO) run ./deploy/appliance/build --deb "$$(echo $(CURDIR)/$(APPLIANCE)/package/*.deb)" --out $(APPLIANCE)

.PHONY: test-appliance
test-appliance: appliance ## Boot it in QEMU: it serves, outlives a power cut in an update, and gives up broken ones (root)
	@.ci/programs ovmf=/usr/share/OVMF/OVMF_CODE_4M.fd openssh-client=ssh dosfstools=mkfs.vfat mtools=mcopy
	WEIR_APPLIANCE=$(CURDIR)/$(APPLIANCE) $(GO) test ./deploy/appliance -count=1 -timeout $(TIMEOUT) -run '^TestVMAppliance$$' -v

.PHONY: kubeenv
kubeenv: ## Build the test cluster, once, and print its path: minutes, cached
	@GO="$(GO)" discovery/kube/kubeenv/build.sh

.PHONY: fuzz
fuzz: ## Fuzz every target for FUZZTIME each (make fuzz FUZZTIME=5m)
	@rm -rf $(RESULTS)
	@$(MAKE) --no-print-directory run-fuzz
	@$(TESTSUM) report -dir $(RESULTS)

.PHONY: flood
flood: ## Floods of forged packets beside honest clients, in memory and at the wire (make flood MINUTES=10; root)
	WEIR_FLOOD_MINUTES=$(MINUTES) $(GO) test -count=1 -timeout 0 -run '^TestFlood' ./lb/worker
	CI=true WEIR_UDPFLOOD_SECONDS=$$(( $(MINUTES) * 60 )) WEIR_UDPFLOOD_FLOWS=1000 WEIR_UDPFLOOD_RATE=50000 WEIR_UDPFLOOD_LOST=5 $(GO) test ./cmd/weir/e2e -count=1 -timeout 0 -run '^TestWireUDPFlood$$' -v

.PHONY: model
model: ## Forged segments against a model of TCP for MINUTES (make model MINUTES=60)
	WEIR_MODEL_MINUTES=$(MINUTES) $(GO) test ./conntrack -count=1 -timeout 0 -run '^TestForgedSegmentsAgainstTheModel$$' -v -rapid.checks=10000 -rapid.steps=60

.PHONY: kills
kills: ## Established and new connections while Weir is killed KILLS times (make kills KILLS=10; root)
	CI=true WEIR_KILLS=$(KILLS) WEIR_KILL_CONNECTIONS=2000 WEIR_KILL_NEW=500 $(GO) test ./cmd/weir/e2e -count=1 -timeout 0 -run '^TestWireConnectionsSurviveKills$$' -v

.PHONY: deaths
deaths: ## End Weir in every manner DEATHS times while the kernel forwards, and print the longest gaps (make deaths DEATHS=10; root)
	CI=true WEIR_DEATHS=$(DEATHS) $(GO) test ./cmd/weir/e2e -count=1 -timeout 0 -run '^TestWireCachedConnectionsOutliveTheProcess$$' -v

.PHONY: traces
traces: ## Compare weir trace with the wire for TRACES random frames (make traces TRACES=1000 TRACE_SEED=7; root)
	CI=true TRACES=$(TRACES) TRACE_SEED=$(TRACE_SEED) $(GO) test ./cmd/weir/e2e/packet -count=1 -timeout 0 -run '^TestWireTraceAgreesWithTheWire$$' -v

.PHONY: crashes
crashes: ## Kill a process that changes a flow table CRASHES times, and check the table after each (make crashes CRASHES=1000)
	$(GO) test ./conntrack -count=1 -timeout 0 -run '^TestAProcessThatIsKilledLeavesASoundTable$$' -v -args -kills=$(CRASHES)

.PHONY: fleet-scale
fleet-scale: build ## Kill one of four Weirs under CONNECTIONS connections in ipip and gue into perf/results/fleet-scale.txt (make fleet-scale CONNECTIONS=10000; root; installs FRR; minutes)
	@.ci/programs frr
	@{ date -u +%F; uname -srm; grep -m1 'model name' /proc/cpuinfo; echo "CPUs $$(nproc), load $$(cut -d' ' -f1-3 /proc/loadavg)"; } > $(BIN)/fleet-scale.txt
	CI=true WEIR_BINARY=$(CURDIR)/$(BIN)/weir WEIRPERF_BINARY=$(CURDIR)/$(BIN)/weirperf WEIR_FLEET_CONNECTIONS=$(CONNECTIONS) WEIR_FLEET_FIGURES=$(CURDIR)/$(BIN)/fleet-scale.txt \
		$(GO) test ./cmd/weir/e2e/fleet -count=1 -timeout 0 -run '^TestWireFleetKeepsConnections$$' -v
	@cp $(BIN)/fleet-scale.txt perf/results/fleet-scale.txt

.PHONY: conformance
conformance: build ## The official cases of the Gateway API and Kubernetes' own of SIG Network, on real clusters, into perf/results (root; installs containerd, FRR; 20 to 40 minutes, and 10 more the first time)
	@.ci/programs frr curl nftables iproute2 containerd=containerd runc=runc containernetworking-plugins=/usr/lib/cni/bridge \
		busybox=busybox dash=dash wget=wget netcat-openbsd=/bin/nc.openbsd
	@kubeenv=$$(GO="$(GO)" discovery/kube/kubeenv/build.sh) && programs=$$(GO="$(GO)" perf/conformance/kubernetes/build.sh) && \
	export CI=true KUBEENV_BIN=$$kubeenv WEIR_KUBERNETES_BIN=$$programs WEIR_BINARY=$(CURDIR)/$(BIN)/weir WEIR_CONFORMANCE_RESULTS=$(CURDIR)/perf/results GOWORK=off && status=0 || exit; \
	$(GO) -C perf/conformance test -count=1 -timeout 0 -run '^TestGateways$$' -v . || status=1; \
	$(GO) -C perf/conformance/kubernetes vet ./... || status=1; \
	$(GO) -C perf/conformance/kubernetes test -count=1 -timeout 0 -run '^Test(EveryCaseIsDecided|Cases)$$' -v . || status=1; exit $$status

.PHONY: soak
soak: build ## Weir under every fault, with endpoint churn, for MINUTES into perf/results/soak.txt (make soak MINUTES=30 SEED=7; root)
	@rm -f $(BIN)/soak.txt
	CI=true WEIR_BINARY=$(CURDIR)/$(BIN)/weir WEIR_SOAK_RESULTS=$(CURDIR)/$(BIN)/soak.txt WEIR_SOAK_SECONDS=$$(( $(MINUTES) * 60 )) WEIR_SOAK_SEED=$(SEED) WEIR_SOAK_HOOK=$(HOOK) WEIR_SOAK_SOURCE=$(SOURCE) WEIR_SOAK_CONNECTIONS=1000 WEIR_SOAK_ONLY= $(GO) test ./perf/chaos -count=1 -timeout 0 -run '^TestWireSoak$$' -v
	@{ date -u +%F; uname -srm; grep -m1 'model name' /proc/cpuinfo; echo "CPUs $$(nproc), load $$(cut -d' ' -f1-3 /proc/loadavg)"; cat $(BIN)/soak.txt; } > perf/results/soak.txt

# Not by `go run`, which adds a line of its own after the last one.
.PHONY: $(TESTSUM)
$(TESTSUM):
	@$(GO) build -buildvcs=false -o $@ ./.ci/testsum

# Links the program that the tests run, once: each package would link its own. Tests run it
# without root, too.
BUILD_TESTED = dir=$$(mktemp -d) && trap 'rm -rf "$$dir"' EXIT && chmod 755 $$dir && \
	export WEIR_BINARY=$$dir/weir && $(GO) build -buildvcs=false -ldflags=-s -o $$WEIR_BINARY ./cmd/weir || exit

ALONE := ^TestWire(DemoLAN|ThousandAddressesMove)$$

.PHONY: run-unit run-race run-fuzz run-wire run-kube run-deploy run-chart run-release
run-unit run-race run-fuzz run-wire run-kube run-deploy run-chart run-release: $(TESTSUM)
run-unit:
	@$(TESTSUM) run -dir $(RESULTS) -name unit -- $(GO) test -json -count=1 -timeout $(TIMEOUT) -skip '^Test(Wire|Kube|Guest|VM)' ./... $(TOOLS)
# The race detector is linked with C. The packages were vetted by the stage before.
run-race:
	@cc=$$(command -v gcc || command -v clang || command -v clang-14) || { \
		echo "no C compiler: the race detector is left out"; [ "$$CI" != true ]; exit; }; \
	CC=$$cc CGO_ENABLED=1 $(TESTSUM) run -dir $(RESULTS) -name race -- $(GO) test -json -race -short -vet=off -count=1 -timeout $(TIMEOUT) -skip '^Test(Wire|Kube|Guest|VM)' $(RACE_PACKAGES)
run-fuzz:
	@$(TESTSUM) fuzz -dir $(RESULTS) -time $(FUZZTIME) ./...
# The packages that have tests with a prefix: a hundred others would be linked for none.
WITH_TESTS = $$(grep -rlE --include='*_test.go' --exclude-dir=charttest --exclude-dir=release '^func Test$(1)' . | xargs -n1 dirname | sort -u)

# Three commands at a time, and four of the tests that wait for timers: each has namespaces of its own.
# cmd/weir/e2e, half of the time, is two commands.
# Two run without such neighbors: nodes of the demo of a LAN take another for dead within 300 ms, and the kernel
# cuts the neighbor tables of all namespaces when a thousand addresses fill that of one.
# The packet table runs once more at each hook where the kernel forwards established flows.
run-wire:
	@[ "$$(id -u)" = 0 ] || echo "wire tests need root: they will be skipped"
	@.ci/programs
	@$(BUILD_TESTED); \
	run="$(GO) test -json -count=1 -p 1 -parallel 4 -timeout $(TIMEOUT) -skip $(ALONE) -run ^TestWire"; \
	$(TESTSUM) run -dir $(RESULTS) -name wire -jobs 3 -- $${run}[^A-D] ./cmd/weir/e2e :: $${run}[A-D] ./cmd/weir/e2e \
		$$(for p in $(call WITH_TESTS,Wire); do [ $$p = ./cmd/weir/e2e ] || echo ":: $$run $$p"; done | sort -r) || exit; \
	$(TESTSUM) run -dir $(RESULTS) -name wire-lan -- $(GO) test -json -count=1 -p 1 -timeout $(TIMEOUT) -run '$(ALONE)' ./cmd/weir/e2e ./cmd/weir/e2e/lan || exit; \
	for hook in xdp tcx; do WEIR_CACHE=$$hook $(TESTSUM) run -dir $(RESULTS) -name wire-$$hook -- \
		$(GO) test -json -count=1 -timeout $(TIMEOUT) -run '^TestWire' ./cmd/weir/e2e/packet || exit; done
# Where the test cluster cannot be built the tests skip and say so; in CI they fail.
run-kube:
	@bin=$$(GO="$(GO)" discovery/kube/kubeenv/build.sh) || { echo "kubeenv cannot be built"; bin=; }; \
	proxy=$$(GO="$(GO)" discovery/kube/kubeenv/kubeproxy/build.sh) || { echo "kube-proxy cannot be built"; proxy=; }; \
	metallb=$$(GO="$(GO)" discovery/kube/kubeenv/metallb/build.sh) || { echo "MetalLB cannot be built"; metallb=; }; \
	$(BUILD_TESTED); \
	KUBEENV_BIN=$$bin KUBEPROXY_BIN=$$proxy METALLB_BIN=$$metallb $(TESTSUM) run -dir $(RESULTS) -name kube -- $(GO) test -json -count=1 -p 2 -timeout $(TIMEOUT) -run '^TestKube' $(call WITH_TESTS,Kube)
# The tests of deploy in this module are those of the groups above, together.
run-deploy:
	@bin=$$(GO="$(GO)" discovery/kube/kubeenv/build.sh) || { echo "kubeenv cannot be built"; bin=; }; \
	KUBEENV_BIN=$$bin $(TESTSUM) run -dir $(RESULTS) -name deploy -- $(GO) test -json -count=1 -timeout $(TIMEOUT) ./deploy/...
# Those with Helm and kustomize are a module of their own.
run-chart:
	@bin=$$(GO="$(GO)" discovery/kube/kubeenv/build.sh) || { echo "kubeenv cannot be built"; bin=; }; \
	KUBEENV_BIN=$$bin GOWORK=off $(TESTSUM) run -dir $(RESULTS) -name chart -- $(GO) -C deploy/charttest test -json -count=1 -timeout $(TIMEOUT) ./...

# The packages are built by a module of their own, for the same reason.
run-release:
	@GOWORK=off $(TESTSUM) run -dir $(RESULTS) -name release -- $(GO) -C deploy/release test -json -count=1 -timeout $(TIMEOUT) ./...

.PHONY: deb
deb: ## The deb of this tree and architecture into bin/deb (make deb VERSION=1.2.3)
	GOWORK=off $(GO) -C deploy/release run . --arch $$($(GO) env GOARCH) --formats deb --out ../../$(BIN)/deb --modified $(PACK)

.PHONY: release
release: ## deb, rpm, image, archive, chart, SBOM and checksums of this commit into bin/release (make release VERSION=1.2.3)
	GOWORK=off $(GO) -C deploy/release run . $(PACK)

.PHONY: bench
bench: build ## Measure everything into perf/results: report.md, charts, JSON (root; 15 minutes)
	@mkdir -p perf/results
	$(BIN)/weirperf pipeline --samples 5 --json > perf/results/pipeline.json
	$(BIN)/weirperf table --json > perf/results/table.json
	$(BIN)/weirperf stall --seconds 5 --json > perf/results/stall.json
	$(BIN)/weirperf fleet --flows 500000 --results perf/results
	@echo "$(BIN)/weirperf forward --json > perf/results/forward.json"; \
	status=0; $(BIN)/weirperf forward --json > perf/results/forward.json || status=$$?; \
	$(BIN)/weirperf report perf/results && echo "see perf/results/report.md" && exit $$status

.PHONY: bars
bars: build ## Compare the flow cache with the ratios that it has to reach, on 2 quiet CPUs (root; 15 minutes)
	$(BIN)/weirperf forward --bars

.PHONY: listings
listings: build ## Compare the packet loop with and without listings of 1,000,000 connections: 10 % at most (root; a minute)
	nice -n -20 $(BIN)/weirperf connections --realtime --bar 10

.PHONY: bfd
bfd: ## Stop a node in silence and cut it off, with each form of a router's neighbors, and wait for BFD (root; installs FRR)
	@.ci/programs frr
	WEIR_BFD_ALL=1 $(GO) test ./lb/announce/bgp -count=1 -run '^TestWireBFD' -v

.PHONY: fleet-bars
fleet-bars: build ## Measure drain, death and loss of a fleet into perf/results/fleet-bed.txt (root; installs FRR; 14 minutes)
	@.ci/programs frr
	@{ date -u +%F; uname -srm; grep -m1 'model name' /proc/cpuinfo; echo "CPUs $$(nproc), load $$(cut -d' ' -f1-3 /proc/loadavg)"; } > $(BIN)/fleet-bed.txt
	@status=0; for run in '--events drain,kill --rounds 5' '--events cut --hold 3 --rounds 5' '--events cut --hold 9' '--events cut --bfd 300 --rounds 5' '--events cut --bfd 50 --rounds 5' '--events busy --bfd 300' '--events kill --connections 1500'; do \
		echo "weirperf demo fleet $$run" | tee -a $(BIN)/fleet-bed.txt; \
		$(BIN)/weirperf demo fleet $$run > $(BIN)/fleet-run.txt || status=1; \
		sed -n '/established connections of each/,$$p' $(BIN)/fleet-run.txt | tee -a $(BIN)/fleet-bed.txt; done; \
	cp $(BIN)/fleet-bed.txt perf/results/fleet-bed.txt; exit $$status

.PHONY: fleet-changes
fleet-changes: build ## Count unserved packets over CHANGES random changes of a fleet into perf/results/fleet-changes.txt (make fleet-changes CHANGES=1000 SEED=7; root; installs FRR; 5 minutes)
	@.ci/programs frr
	@{ date -u +%F; uname -srm; grep -m1 'model name' /proc/cpuinfo; echo "CPUs $$(nproc), load $$(cut -d' ' -f1-3 /proc/loadavg)"; } > $(BIN)/fleet-changes.txt
	CI=true WEIR_BINARY=$(CURDIR)/$(BIN)/weir WEIR_FLEET_CHANGES=$(CHANGES) WEIR_FLEET_SEED=$(SEED) WEIR_FLEET_FIGURES=$(CURDIR)/$(BIN)/fleet-changes.txt \
		$(GO) test ./cmd/weir/e2e/fleet -count=1 -timeout 0 -run '^TestWire(NoPacketForAnUnservedAddress|RouterSendsUntilItFollows)$$' -v
	@cp $(BIN)/fleet-changes.txt perf/results/fleet-changes.txt

.PHONY: bench-go
bench-go: ## Go benchmarks into bin/bench.txt (make bench-go BENCH=Lookup COUNT=10; compare with benchstat)
	@mkdir -p $(BIN)
	$(GO) test -run '^$$' -bench '$(BENCH)' -benchmem -count=$(COUNT) ./... | tee $(BIN)/bench.txt

##
# Endpoints of core/v1 are deprecated, and serving them is what mirroring is for.
.PHONY: lint
lint: ## gofmt, vet, staticcheck, import boundaries, language of comments and documents
	@out=$$(gofmt -l .); [ -z "$$out" ] || { echo "gofmt -w these:"; echo "$$out"; exit 1; }
	@! git grep -nE '^(<{7}|>{7})( |$$)' -- . || { echo "conflict markers"; exit 1; }
	$(GO) vet ./... $(TOOLS)
	GOWORK=off $(GO) -C deploy/charttest vet ./...
	GOWORK=off $(GO) -C deploy/release vet ./...
	GOWORK=off $(GO) -C perf/conformance vet ./...
	@if GOWORK=off GOPROXY=off $(GO) -C perf/conformance/kubernetes list -deps -test ./... >/dev/null 2>&1; then \
		echo "GOWORK=off $(GO) -C perf/conformance/kubernetes vet ./..."; GOWORK=off $(GO) -C perf/conformance/kubernetes vet ./...; \
	else echo "perf/conformance/kubernetes is left to make conformance: its modules, 660 MB, are not downloaded"; fi
	@echo "$(GO) tool staticcheck ./... $(TOOLS)"; \
	out=$$($(GO) tool staticcheck ./... $(TOOLS)); status=$$?; \
	left=$$(grep -v 'core/v1\.Endpoint[A-Za-z]* is deprecated' <<<"$$out"); \
	[ -z "$$left" ] && { [ $$status = 0 ] || [ -n "$$out" ]; } || { echo "$$left"; exit 1; }
	$(GO) test -count=1 -run '^TestBoundary' ./cmd/weir
	@$(GO) run ./.ci/prose

.PHONY: generate
generate: ## Compile the XDP program (clang) and write the references of commands, configuration, metrics and chart
	$(GO) generate ./...
	GOWORK=off $(GO) -C deploy/charttest generate ./...

.PHONY: check-generate
check-generate: ## Tell whether what `make generate` writes is current
	@before=$$(sha256sum $(GENERATED)); \
	$(MAKE) --no-print-directory generate || exit 1; \
	after=$$(sha256sum $(GENERATED)); \
	[ "$$before" = "$$after" ] || { echo "generated files were not current:"; diff <(echo "$$before") <(echo "$$after"); exit 1; }

IMAGE ?= ghcr.io/weirlb/weir:dev

.PHONY: image
image: ## Build the container image (make image IMAGE=registry.example/weir:v1; docker)
	docker build -f deploy/image/Dockerfile -t $(IMAGE) .

.PHONY: clean
clean: ## Remove what was built
	rm -rf $(BIN)
