package peer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"text/template"
	"time"

	"github.com/weirlb/weir/perf/netlab"
	"github.com/weirlb/weir/perf/testbed"
)

// HAProxy is haproxy in TCP mode, with one thread.
type HAProxy struct{}

func (HAProxy) Name() string            { return "haproxy" }
func (HAProxy) Carries(p Protocol) bool { return p == TCP }
func (HAProxy) Available() error        { return installed("haproxy", "haproxy") }

var haproxyConfig = template.Must(template.New("").Parse(`global
  nbthread 1
  maxconn 4000
defaults
  mode tcp
  timeout connect 5s
  timeout client 60s
  timeout server 60s
{{range $i, $s := .Services}}
frontend f{{$i}}
  bind {{$s.Frontend}}
  default_backend b{{$i}}
backend b{{$i}}
  balance roundrobin
  option redispatch
{{- if eq $s.Check.Kind "http"}}
  option httpchk GET /
{{- end}}
{{- range $j, $e := $s.Endpoints}}
  server e{{$j}} {{$e}}{{if $s.Check.Kind}} check inter {{$s.Check.Every}} fall {{$s.Check.Fails}}{{end}}
{{- end}}
{{end}}`))

// Start runs haproxy on the node, which gets the frontends' addresses.
func (HAProxy) Start(ctx context.Context, b *testbed.Bed, c Config) (Running, error) {
	return startProxy(ctx, b, c, haproxyConfig, func(config, _ string) *exec.Cmd {
		return exec.Command("haproxy", "-db", "-f", config)
	})
}

// Nginx is nginx with its stream module, one worker process.
type Nginx struct{}

func (Nginx) Name() string            { return "nginx" }
func (Nginx) Carries(p Protocol) bool { return p == TCP }

// Available looks for the program and for its stream module, which Debian has in a separate
// package.
func (Nginx) Available() error {
	if err := installed("nginx", "nginx libnginx-mod-stream"); err != nil {
		return err
	}
	if _, err := os.Stat(streamModule); err != nil {
		return fmt.Errorf("nginx has no stream module (%s): apt-get install libnginx-mod-stream", streamModule)
	}
	return nil
}

const streamModule = "/usr/lib/nginx/modules/ngx_stream_module.so"

var nginxConfig = template.Must(template.New("").Parse(`load_module ` + streamModule + `;
user root;
daemon off;
master_process off;
worker_processes 1;
pid {{.Dir}}/nginx.pid;
error_log stderr error;
events { worker_connections 16384; }
stream {
{{range $i, $s := .Services}}
  upstream b{{$i}} {
{{- range $s.Endpoints}}
    server {{.}};
{{- end}}
  }
  server { listen {{$s.Frontend}} backlog=4096; proxy_pass b{{$i}}; tcp_nodelay on; }
{{end}}
}
`))

// Start runs nginx on the node, which gets the frontends' addresses.
func (Nginx) Start(ctx context.Context, b *testbed.Bed, c Config) (Running, error) {
	return startProxy(ctx, b, c, nginxConfig, func(config, dir string) *exec.Cmd {
		return exec.Command("nginx", "-p", dir, "-c", config)
	})
}

func installed(program, packages string) error {
	if _, err := exec.LookPath(program); err != nil {
		return fmt.Errorf("%s is not installed: apt-get install %s (and stop its service)", program, packages)
	}
	return nil
}

// proxy is a process on the node that accepts and makes connections.
type proxy struct {
	node      *netlab.Namespace
	process   *netlab.Process
	log       bytes.Buffer
	dir       string
	addresses []netip.Prefix // given to the node
}

const (
	proxyStartWithin = 10 * time.Second
	proxyStopWithin  = 5 * time.Second
)

func startProxy(ctx context.Context, b *testbed.Bed, c Config, config *template.Template, command func(config, dir string) *exec.Cmd) (_ Running, err error) {
	dir, err := os.MkdirTemp(b.Dir(), "proxy")
	if err != nil {
		return nil, err
	}
	p := &proxy{node: b.Node, dir: dir}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.Stop())
		}
	}()
	var services []Service
	for _, s := range c.Services {
		if s.Protocol != TCP {
			continue
		}
		services = append(services, s)
		at := netip.PrefixFrom(s.Frontend.Addr(), s.Frontend.Addr().BitLen())
		if err := b.Node.AddAddr(testbed.NodeFront, at); err != nil {
			return nil, err
		}
		p.addresses = append(p.addresses, at)
	}
	var text bytes.Buffer
	if err := config.Execute(&text, map[string]any{"Services": services, "Dir": dir}); err != nil {
		return nil, err
	}
	file := filepath.Join(dir, "config")
	if err := os.WriteFile(file, text.Bytes(), 0o644); err != nil {
		return nil, err
	}
	cmd := command(file, dir)
	cmd.Stdout, cmd.Stderr = &p.log, &p.log
	if p.process, err = b.Start(cmd); err != nil {
		return nil, err
	}
	for _, s := range services {
		if err := p.answers(ctx, s.Frontend); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// answers waits until the proxy accepts connections.
func (p *proxy) answers(ctx context.Context, at netip.AddrPort) error {
	ctx, cancel := context.WithTimeout(ctx, proxyStartWithin)
	defer cancel()
	for {
		conn, err := p.node.DialWith(ctx, &net.Dialer{Timeout: time.Second}, "tcp4", at.String())
		if err == nil {
			return conn.Close()
		}
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		case <-p.process.Done():
			return fmt.Errorf("it has ended (%v); it said:\n%s", p.process.Err(), p.log.String())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func (p *proxy) Direct() bool                        { return false }
func (p *proxy) Processes() []int                    { return []int{p.process.Cmd.Process.Pid} }
func (p *proxy) Refused() (map[string]uint64, error) { return nil, nil }
func (p *proxy) Details() map[string]float64         { return nil }

// Stop ends the proxy and removes the frontend addresses from the node.
func (p *proxy) Stop() error {
	var errs []error
	if p.process != nil {
		select {
		case <-p.process.Done():
		default:
			errs = append(errs, p.process.Stop(proxyStopWithin))
		}
	}
	for _, a := range p.addresses {
		errs = append(errs, p.node.RemoveAddr(testbed.NodeFront, a))
	}
	return errors.Join(append(errs, os.RemoveAll(p.dir))...)
}
