package peer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"text/template"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/perf/netlab"
	"github.com/weirlb/weir/perf/testbed"
)

// Weir is `weir run` with manifests, attached to both interfaces of the node.
type Weir struct {
	// Variant is "" for the defaults, "loop" for no flow cache, or the hook of a Weir with a
	// flow cache. Baseline is another program.
	Variant string
}

// Baseline is the variant of another program, with its defaults.
const Baseline = "baseline"

// Name is weir, and the variant.
func (v Weir) Name() string {
	if v.Variant == "" {
		return "weir"
	}
	return "weir-" + v.Variant
}

// cacheLines are the lines of the configuration for the variant.
func (v Weir) cacheLines() string {
	front, back := testbed.NodeFront, testbed.NodeBack
	switch v.Variant {
	case "", Baseline:
		return fmt.Sprintf("interfaces: [{name: %s}, {name: %s}]", front, back)
	case "loop":
		return fmt.Sprintf("flowCache: {mode: \"off\"}\ninterfaces: [{name: %s}, {name: %s}]", front, back)
	}
	return fmt.Sprintf("flowCache: {mode: auto}\ninterfaces: [{name: %s, hook: %s}, {name: %s, hook: %s}]",
		front, v.Variant, back, v.Variant)
}

func (Weir) Carries(Protocol) bool { return true }
func (Weir) Available() error      { return nil }

const (
	weirStartWithin = 60 * time.Second // with a flow table of gigabytes
	weirStopWithin  = 20 * time.Second
)

// manifests are the Services, as of type LoadBalancer, with their endpoints in
// slices of 100.
var manifests = template.Must(template.New("").Parse(`
{{- range .}}---
apiVersion: v1
kind: Service
metadata: {namespace: bench, name: {{.Name}}, annotations: { {{- .Annotation -}} }}
spec:
  type: LoadBalancer
  allocateLoadBalancerNodePorts: false
  ports: [{name: main, protocol: {{.Protocol}}, port: {{.Port}}, targetPort: {{.TargetPort}}}]
status: {loadBalancer: {ingress: [{ip: {{.Address}}}]}}
{{- $s := .}}{{range $i, $slice := .Slices}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: bench, name: {{$s.Name}}-{{$i}}, labels: {kubernetes.io/service-name: {{$s.Name}}}}
addressType: IPv4
ports: [{name: main, protocol: {{$s.Protocol}}, port: {{$s.TargetPort}}}]
endpoints:
{{- range $slice}}
- {addresses: [{{.}}], conditions: {ready: true}}
{{- end}}{{end}}
{{end}}`))

// configuration leaves all but sizes and paths at the default.
var configuration = template.Must(template.New("").Parse(`apiVersion: weir.dev/v1alpha1
kind: WeirConfiguration
nodeName: node
discovery: {manifests: {path: {{.Dir}}/manifests.yaml}}
{{.Interfaces}}
snat: {addresses: [{{.SNAT}}]}
conntrack: {maxFlows: {{.MaxFlows}}, path: {{.Dir}}/tables/flows, takeoverSeconds: 0}
workers: {count: 1, cpus: [{{.CPU}}]}
admin: {socket: {{.Dir}}/weir.sock}
stateDir: ""
metricsBindAddress: ""
healthzBindAddress: ""
`))

// Start writes configuration and manifests, starts Weir and waits until it
// serves every Service with every endpoint.
func (v Weir) Start(ctx context.Context, b *testbed.Bed, c Config) (_ Running, err error) {
	dir, err := os.MkdirTemp(b.Dir(), "weir")
	if err != nil {
		return nil, err
	}
	w := &weir{node: b.Node, dir: dir, maxFlows: max(c.MaxFlows, 1024), admin: api.NewClient(filepath.Join(dir, "weir.sock"))}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.Stop())
		}
	}()
	if err := w.write(v, b, c); err != nil {
		return nil, err
	}
	// The flow table belongs on a memory file system, which /run is on a
	// node: here the file system ends with the node.
	tables := filepath.Join(dir, "tables")
	if err := os.Mkdir(tables, 0o700); err != nil {
		return nil, err
	}
	if err := b.Node.Inside(func() error { return unix.Mount("tmpfs", tables, "tmpfs", 0, "size=75%") }); err != nil {
		return nil, fmt.Errorf("memory file system for the flow table: %w", err)
	}
	w.tables = tables
	program := c.Weir
	if v.Variant == Baseline {
		program = c.Baseline
	}
	cmd := exec.Command(program, "run", "--config", filepath.Join(dir, "config.yaml"))
	cmd.Stdout, cmd.Stderr = &w.log, &w.log
	if w.process, err = b.Start(cmd); err != nil {
		return nil, err
	}
	if err := w.ready(ctx, c); err != nil {
		return nil, fmt.Errorf("%w; it said:\n%s", err, w.said())
	}
	return w, nil
}

// weir is a running Weir.
type weir struct {
	node    *netlab.Namespace
	dir     string
	tables  string // mounted
	admin   *api.Client
	process *netlab.Process

	maxFlows int
	log      bytes.Buffer // written until the process has ended
}

func (w *weir) write(v Weir, b *testbed.Bed, c Config) error {
	var config, objects bytes.Buffer
	err := configuration.Execute(&config, map[string]any{
		"Dir": w.dir, "Interfaces": v.cacheLines(), "SNAT": testbed.SNAT,
		"MaxFlows": w.maxFlows, "CPU": b.LBCore,
	})
	if err != nil {
		return err
	}
	var services []map[string]any
	for _, s := range c.Services {
		var slices [][]string
		for i, e := range s.Endpoints {
			if i%100 == 0 {
				slices = append(slices, nil)
			}
			slices[len(slices)-1] = append(slices[len(slices)-1], e.Addr().String())
		}
		services = append(services, map[string]any{
			"Name": strings.ToLower(string(s.Protocol)), "Protocol": s.Protocol, "Port": s.Frontend.Port(),
			"TargetPort": s.Endpoints[0].Port(), "Address": s.Frontend.Addr(), "Slices": slices, "Annotation": s.Check.annotation(),
		})
	}
	if err := manifests.Execute(&objects, services); err != nil {
		return err
	}
	return errors.Join(
		os.WriteFile(filepath.Join(w.dir, "config.yaml"), config.Bytes(), 0o644),
		os.WriteFile(filepath.Join(w.dir, "manifests.yaml"), objects.Bytes(), 0o644))
}

// annotation is the check as an annotation of the Service, "" for none.
func (c Check) annotation() string {
	if c.Kind == "" {
		return ""
	}
	how := "tcpSocket: {}"
	if c.Kind == CheckHTTP {
		how = "httpGet: {path: /}"
	}
	return fmt.Sprintf("weir.dev/health-check: '{%s, periodSeconds: %.0f, failureThreshold: %d}'", how, c.Every.Seconds(), c.Fails)
}

// ready waits until every frontend has every endpoint and every interface is
// attached.
func (w *weir) ready(ctx context.Context, c Config) error {
	ctx, cancel := context.WithTimeout(ctx, weirStartWithin)
	defer cancel()
	if err := w.process.Until(ctx, func(ctx context.Context) error { return w.serves(ctx, c) }); err != nil {
		return errors.Join(ctx.Err(), err)
	}
	return nil
}

func (w *weir) serves(ctx context.Context, c Config) error {
	status, err := w.admin.Status(ctx)
	if err != nil {
		return err
	}
	if err := status.Attached(); err != nil {
		return err
	}
	list, err := w.admin.Frontends(ctx)
	if err != nil {
		return err
	}
	if len(list.Frontends) != len(c.Services) {
		return fmt.Errorf("it serves %d frontends, want %d", len(list.Frontends), len(c.Services))
	}
	for i, f := range list.Frontends {
		if want := len(c.Services[i].Endpoints); len(f.Endpoints) != want {
			return fmt.Errorf("frontend %s has %d endpoints, want %d", f.Address, len(f.Endpoints), want)
		}
	}
	return nil
}

func (w *weir) Direct() bool     { return false }
func (w *weir) Processes() []int { return []int{w.process.Cmd.Process.Pid} }

// Refused counts new flows for which there was no port or no room.
func (w *weir) Refused() (map[string]uint64, error) {
	status, err := w.admin.Status(context.Background())
	if err != nil {
		return nil, err
	}
	return map[string]uint64{"SNAT ports": status.Flows.NoPort, "flow table": status.Flows.Full}, nil
}

// Details are the drops of the kernel and of Weir, by reason.
func (w *weir) Details() map[string]float64 {
	status, err := w.admin.Status(context.Background())
	if err != nil {
		return nil
	}
	d := map[string]float64{}
	if bytes, err := w.tableBytes(status.Flows.MemoryBytes); err == nil {
		d[TableBytes] = bytes / float64(w.maxFlows)
	}
	for reason, n := range status.Drops {
		if n > 0 {
			d["dropped "+reason] = float64(n)
		}
	}
	for _, i := range status.Interfaces {
		if r := i.Repeated; r != nil && r.Packets > 0 {
			d["share of "+i.Name+" that the kernel forwarded"] = r.Share()
		}
		for _, s := range i.Sockets {
			if n := s.RxDropped + s.RxRingFull + s.RxFillRingEmpty; n > 0 {
				d["not received at "+i.Name] += float64(n)
			}
		}
	}
	return d
}

// Stop ends Weir without a drain, and removes the files.
func (w *weir) Stop() error {
	var errs []error
	if w.process != nil {
		select {
		case <-w.process.Done():
		default:
			_ = w.process.Signal(os.Interrupt) // of any version: no drain
			errs = append(errs, w.process.Stop(weirStopWithin))
		}
		if code := w.process.ExitCode(); code != 0 {
			errs = append(errs, fmt.Errorf("weir run has ended with status %d; it said:\n%s", code, w.said()))
		}
	}
	if w.tables != "" {
		errs = append(errs, w.node.Inside(func() error { return unix.Unmount(w.tables, 0) }))
	}
	return errors.Join(append(errs, os.RemoveAll(w.dir))...)
}

// said returns the end of Weir's log; it ends Weir, so that nothing more
// is written.
func (w *weir) said() string {
	_ = w.process.Kill()
	const lines = 15
	all := strings.Split(strings.TrimSpace(w.log.String()), "\n")
	return "  " + strings.Join(all[max(0, len(all)-lines):], "\n  ")
}
