package controller

import (
	"errors"
	"fmt"

	"os"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/klog/v2"

	"github.com/weirlb/weir/cmd/weir/config"
)

// usageError means that the command was called wrongly.
type usageError struct{ error }

// ExitCode is 2.
func (usageError) ExitCode() int { return 2 }

// namespaceFile has the namespace of a Pod.
const namespaceFile = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

// Command is `weir controller`.
func Command() *cobra.Command {
	var o Options
	logging := config.Logging{Format: "text"}
	cmd := &cobra.Command{
		Use:   "controller [flags]",
		Short: "Give Services of type LoadBalancer addresses from pools",
		Long: `Allocates addresses of Services of type LoadBalancer, and writes them to
status.loadBalancer. Pools are objects of MetalLB (IPAddressPool in metallb.io) or of
Weir (AddressPool in weir.dev, same fields), in the API server or in files. Nodes and
workers are not touched: run it anywhere with access to the API server. Of several
controllers the holder of a Lease allocates.

The status of Services is the only record. A start adopts all addresses first. An address
moves only if its Service asks for another one, or if an older Service has it too.

Services are those with spec.loadBalancerClass --class, and with --default-class those
without a class. See deploy/POOLS.md.`,
		Example: `  weir controller --pools /etc/weir/pools.yaml
  weir controller --kubeconfig ~/.kube/config --namespace weir --default-class
  weir check --pools /etc/weir/pools.yaml`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.check(); err != nil {
				return usageError{err}
			}
			if _, err := config.ParseLevel(logging.Level); err != nil {
				return usageError{fmt.Errorf("--log-level: %w", err)}
			}
			log, _ := logging.Logger(cmd.ErrOrStderr())
			klog.SetSlogLogger(log.With("from", "client-go"))
			return Run(cmd.Context(), o, log)
		},
	}
	fs := cmd.Flags()
	fs.SortFlags = false
	fs.StringVar(&o.Kubeconfig, "kubeconfig", "", "kubeconfig `file`; empty: the cluster of this Pod")
	fs.StringSliceVar(&o.Files, "pools", nil, "`files` or directories of pool objects, beside those in the API server")
	fs.StringSliceVar(&o.PoolNamespaces, "pool-namespaces", nil, "`namespaces` whose pool objects in the API server count; * for all; empty: metallb-system and --namespace")
	fs.StringVar(&o.Class, "class", "weir.dev/edge", "load balancer `class` of the Services")
	fs.BoolVar(&o.DefaultClass, "default-class", false, "Services without a class too")
	fs.BoolVar(&o.Gateways, "gateways", false, "serve Gateways, TCPRoutes and UDPRoutes of the Gateway API, see deploy/GATEWAY.md")
	fs.StringVar(&o.Namespace, "namespace", podNamespace(), "`namespace` of the Lease, and of pools")
	fs.StringVar(&o.Lease, "lease", "weir-controller", "`name` of the Lease; empty: no election")
	fs.StringVar(&o.Identity, "identity", "", "`name` of this process in the Lease; empty: host name and process ID")
	fs.StringVar(&o.Metrics, "metrics-address", "", "`address` for /metrics and /healthz, such as :9479; empty: none")
	fs.StringVar(&logging.Level, "log-level", "info", "`level` of the log: debug, info, warn or error")
	fs.StringVar(&logging.Format, "log-format", "text", "`format` of the log: text or json")
	return cmd
}

// podNamespace is that of this Pod, else default.
func podNamespace() string {
	if b, err := os.ReadFile(namespaceFile); err == nil {
		return strings.TrimSpace(string(b))
	}
	return "default"
}

func (o *Options) check() error {
	var errs []error
	if o.Identity == "" {
		o.Identity = identity()
	}
	for _, msg := range validation.IsQualifiedName(o.Class) {
		errs = append(errs, fmt.Errorf("--class: %q: %s", o.Class, msg))
	}
	if o.Lease != "" && o.Namespace == "" {
		errs = append(errs, errors.New("--namespace: must be set with --lease"))
	}
	return errors.Join(errs...)
}
