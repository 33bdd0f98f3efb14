// Command kubeenv is a Kubernetes control plane for tests, in a single process:
// embedded etcd, the real kube-apiserver, and those real controllers that
// make and clean up EndpointSlices, and Pods of Deployments where these are asked for.
//
//	kubeenv -dir DIR [-port N] [-authz RBAC] [-batch 1s] ...
//
// When the API server is ready it prints a line of JSON
//
//	{"kubeconfig":"DIR/kubeconfig","server":"https://127.0.0.1:N","pid":1,"seconds":1.7}
//
// and serves until standard input is closed, so that it dies with the
// test that started it. It then exits at once, without any shutdown: the API
// server would wait a minute for watchers. The state in DIR is complete
// all the same; started again with the same -dir and -port it carries on.
//
// There is no scheduler, no kubelet and no service account admission: a test
// sets spec.nodeName and the status of its Pods itself.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/client-go/rest"
)

// options are the flags.
type options struct {
	dir         string
	port        int
	cidr        string
	authz       string
	controllers bool
	endpoints   bool
	deployments bool
	batch       time.Duration
	apiserver   string
}

func main() {
	var o options
	flag.StringVar(&o.dir, "dir", "", "`directory` for the state of etcd, certificates and kubeconfig (required)")
	flag.IntVar(&o.port, "port", 0, "`port` of the API server on 127.0.0.1; 0: a free one")
	flag.StringVar(&o.cidr, "cidr", "10.96.0.0/16,fd00:10:96::/108", "service `CIDRs`")
	flag.StringVar(&o.authz, "authz", "AlwaysAllow", "authorization `mode`: AlwaysAllow or RBAC")
	flag.BoolVar(&o.controllers, "controllers", true, "run the endpoint, garbage collector and namespace controllers")
	flag.BoolVar(&o.endpoints, "endpoints", true, "run the controller of legacy Endpoints too")
	flag.BoolVar(&o.deployments, "deployments", false, "run the controllers of Deployments and ReplicaSets too")
	flag.DurationVar(&o.batch, "batch", 0, "how long the endpoint controllers gather changes")
	flag.StringVar(&o.apiserver, "apiserver-args", "", "more `flags` of kube-apiserver, separated by blanks")
	flag.Parse()
	if err := run(o); err != nil {
		fmt.Fprintln(os.Stderr, "kubeenv:", err)
		os.Exit(1)
	}
}

func run(o options) error {
	start := time.Now()
	if o.dir == "" {
		return fmt.Errorf("-dir is required")
	}
	dir, err := filepath.Abs(o.dir)
	if err != nil {
		return err
	}
	o.dir = dir
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if o.port == 0 {
		if o.port, err = freePort(); err != nil {
			return err
		}
	}
	failed := make(chan error, 3)
	etcd, err := startEtcd(filepath.Join(dir, "etcd"), failed)
	if err != nil {
		return err
	}
	if err := startAPIServer(&o, etcd, failed); err != nil {
		return err
	}
	cfg, err := writeKubeconfig(&o)
	if err != nil {
		return err
	}
	if err := waitReady(cfg, failed); err != nil {
		return err
	}
	ctx := context.Background()
	if o.controllers {
		if err := startControllers(ctx, &o, cfg); err != nil {
			return err
		}
	}
	line, err := json.Marshal(struct {
		Kubeconfig string  `json:"kubeconfig"`
		Server     string  `json:"server"`
		PID        int     `json:"pid"`
		Seconds    float64 `json:"seconds"`
	}{kubeconfigPath(&o), cfg.Host, os.Getpid(), time.Since(start).Seconds()})
	if err != nil {
		return err
	}
	fmt.Println(string(line))
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	return <-failed
}

// freePort is a port that is free now, and that the kernel gives to no connection until the API
// server listens there: it is below the ephemeral ports.
func freePort() (int, error) {
	var err error
	for range 100 {
		port := 10000 + rand.IntN(20000)
		var l net.Listener
		if l, err = net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port)); err == nil {
			return port, l.Close()
		}
	}
	return 0, err
}

// waitReady asks /readyz until the API server is ready. The limit is for an emulated machine; those
// who start it have limits of their own.
func waitReady(cfg *rest.Config, failed <-chan error) error {
	c, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return err
	}
	deadline := time.After(10 * time.Minute)
	last := "no answer"
	for {
		if res, err := c.Get(cfg.Host + "/readyz"); err != nil {
			last = err.Error()
		} else {
			body, _ := io.ReadAll(res.Body)
			res.Body.Close()
			if res.StatusCode == 200 {
				return nil
			}
			last = strings.TrimSpace(string(body))
		}
		select {
		case err := <-failed:
			return err
		case <-deadline:
			return fmt.Errorf("the API server is not ready: %s", last)
		case <-time.After(20 * time.Millisecond):
		}
	}
}
