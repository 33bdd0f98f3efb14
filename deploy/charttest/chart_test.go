package charttest

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/v2/lint"
	"helm.sh/helm/v4/pkg/chart/v2/lint/support"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/yaml"
)

// variants are values that together reach every branch of the templates.
var variants = map[string]string{
	"defaults": ``,
	"everything": `
config:
  discovery: {kubernetes: {legacyEndpoints: true}}
  interfaces: [{name: eno1, mode: zerocopy}, {name: eno2, mode: native}]
  metricsBindAddress: 0.0.0.0:9464
  healthzBindAddress: "[::]:9465"
  conntrack: {maxFlows: 1000000}
  flood: {newConnectionsPerPrefix: 500, ipv4PrefixLength: 32, ipv6PrefixLength: 48}
  statusPage: {bindAddress: 0.0.0.0:9466, tokenFile: /etc/weir-token/token}
image: {repository: registry.example/weir, tag: v9, pullPolicy: Always}
imagePullSecrets: [{name: registry}]
apiServer: {host: 192.0.2.1, port: 6443}
serviceAccount: {name: edge, annotations: {a: b}}
affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: edge, operator: Exists}]}]}}}
podAnnotations: {c: d}
podLabels: {e: f}
extraEnv: [{name: GOGC, value: "200"}]
extraVolumes: [{name: manifests, configMap: {name: manifests}}]
extraVolumeMounts: [{name: manifests, mountPath: /etc/weir-manifests}]
lifecycle: {preStop: {sleep: {seconds: 5}}}
minReadySeconds: 60
terminationGracePeriodSeconds: 300
prometheus:
  serviceMonitor:
    enabled: true
    additionalLabels: {release: prometheus}
    relabelings: [{action: labeldrop, regex: pod}]
    metricRelabelings: [{action: drop, sourceLabels: [__name__], regex: go_.*}]
  prometheusRule: {enabled: true, additionalLabels: {release: prometheus}}
dashboards: {enabled: true}
`,
	"controller": `
config: {metricsBindAddress: "0.0.0.0:9464"}
prometheus: {serviceMonitor: {enabled: true}}
controller:
  enabled: true
  replicas: 3
  class: example.com/lb
  defaultClass: true
  gateways: true
  poolNamespaces: [infra, metallb]
  pools: [{apiVersion: metallb.io/v1beta1, kind: IPAddressPool, metadata: {name: p}, spec: {addresses: [192.0.2.0/24]}}]
  nodeSelector: {a: b}
  tolerations: [{key: k, operator: Exists}]
`,
	"announced objects":    `config: {announce: {speaker: bgp, objectNamespaces: [metallb-system], objectSecrets: [router-a, router-b]}}`,
	"deny lists":           `config: {denyLists: [{name: a, configMap: security/drop}, {name: b, file: /etc/b}, {name: c, configMap: security/more, established: keep}, {name: d, configMap: other/drop}, {name: e, configMap: security/drop, scope: services}]}`,
	"selected interfaces":  `config: {interfaces: [{defaultRoute: true}, {cidr: "2001:db8::/64", mode: native}, {name: eth1, hook: tcx}], flowCache: {mode: auto}}`,
	"privileged":           `privileged: true`,
	"no servers":           `config: {healthzBindAddress: "", metricsBindAddress: ""}`,
	"health on an address": `config: {healthzBindAddress: "192.0.2.7:8080"}`,
	"no pins":              `hostPaths: {bpf: ""}`,
	"own account":          "serviceAccount: {create: false, name: mine}\nrbac: {create: false}",
	"a digest":             `image: {digest: "sha256:` + strings.Repeat("0", 64) + `"}`,
	"no tolerations":       "tolerations: []\nnodeSelector: null\nresources: {requests: null}",
	"replaced on delete":   `updateStrategy: {type: OnDelete, rollingUpdate: null}`,
	"without profiles":     "seccompProfile: null\nseLinuxOptions: null",
	"edge nodes":           `{allNodes: false, nodeSelector: {node-role.kubernetes.io/edge: ""}}`,
	"another name":         `fullnameOverride: edge-lb`,
}

func TestChartRendersKnownFieldsOnly(t *testing.T) {
	for _, name := range slices.Sorted(maps.Keys(variants)) {
		t.Run(name, func(t *testing.T) {
			objects, notes, err := helmTemplate(variants[name])
			if err != nil {
				t.Fatal(err)
			}
			for _, o := range objects {
				if _, err := typed(o); err != nil {
					t.Errorf("%s %s: %v", o.GetKind(), o.GetName(), err)
				}
				if !clusterWide(o) && o.GetNamespace() != namespace && o.GetName() != "weir-announce" && o.GetName() != "weir-denylist" {
					t.Errorf("%s %s is in namespace %q", o.GetKind(), o.GetName(), o.GetNamespace())
				}
			}
			if name == "selected interfaces" && !strings.Contains(notes, "on\nthe interfaces of the default routes, the interfaces in 2001:db8::/64, eth1. kube-proxy") {
				t.Errorf("the notes do not name the interfaces:\n%s", notes)
			}
			if !strings.Contains(notes, "rollout status ds/") {
				t.Errorf("the notes do not say what to do next:\n%s", notes)
			}
		})
	}
}

// Names with a suffix are names of Services, too: at most 63 characters.
func TestChartWithALongName(t *testing.T) {
	name := strings.Repeat("long-name-", 6) + "abc" // 63 characters
	objects, _, err := helmTemplate("fullnameOverride: " + name + `
controller: {enabled: true}
prometheus: {serviceMonitor: {enabled: true}, prometheusRule: {enabled: true}}
dashboards: {enabled: true}
config: {metricsBindAddress: "0.0.0.0:9464", announce: {speaker: bgp, objectNamespaces: [metallb-system]}}`)
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range objects {
		if n := o.GetName(); len(n) > 63 || !strings.HasPrefix(n, "long-name-") {
			t.Errorf("%s %s has %d characters", o.GetKind(), n, len(n))
		}
	}
}

func clusterWide(o *unstructured.Unstructured) bool {
	return o.GetKind() == "Namespace" || strings.HasPrefix(o.GetKind(), "ClusterRole") || strings.HasPrefix(o.GetKind(), "ValidatingAdmission")
}

func TestChartPod(t *testing.T) {
	pod := func(t *testing.T, variant string) (*corev1.PodSpec, *corev1.Container) {
		ds := daemonSet(t, mustTemplate(t, variants[variant]))
		return &ds.Spec.Template.Spec, &ds.Spec.Template.Spec.Containers[0]
	}
	t.Run("defaults are the node's own proxy with few rights", func(t *testing.T) {
		spec, c := pod(t, "defaults")
		if !spec.HostNetwork || spec.DNSPolicy != corev1.DNSClusterFirstWithHostNet || spec.PriorityClassName != "system-node-critical" {
			t.Errorf("hostNetwork %v, dnsPolicy %s, priorityClassName %s", spec.HostNetwork, spec.DNSPolicy, spec.PriorityClassName)
		}
		if diff := cmp.Diff([]corev1.Toleration{{Operator: corev1.TolerationOpExists}}, spec.Tolerations); diff != "" {
			t.Error(diff)
		}
		sc := c.SecurityContext
		if !*sc.ReadOnlyRootFilesystem || *sc.AllowPrivilegeEscalation || sc.Privileged != nil {
			t.Errorf("security context %+v", sc)
		}
		want := &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}, Add: []corev1.Capability{"NET_ADMIN", "NET_RAW", "BPF", "PERFMON", "IPC_LOCK"}}
		if diff := cmp.Diff(want, sc.Capabilities); diff != "" {
			t.Error(diff)
		}
		if f := c.Env[0]; f.Name != "NODE_NAME" || f.ValueFrom.FieldRef.FieldPath != "spec.nodeName" {
			t.Errorf("first variable is %+v", f)
		}
	})
	t.Run("probes ask where Weir listens", func(t *testing.T) {
		for variant, want := range map[string]corev1.HTTPGetAction{
			"defaults":             {Path: "/livez", Port: intstr.FromInt32(9465)},
			"everything":           {Path: "/livez", Port: intstr.FromInt32(9465)},
			"health on an address": {Path: "/livez", Port: intstr.FromInt32(8080), Host: "192.0.2.7"},
		} {
			_, c := pod(t, variant)
			if diff := cmp.Diff(&want, c.LivenessProbe.HTTPGet); diff != "" {
				t.Errorf("%s: %s", variant, diff)
			}
		}
		if _, c := pod(t, "no servers"); c.LivenessProbe != nil || c.StartupProbe != nil || c.ReadinessProbe != nil || c.Ports != nil {
			t.Errorf("without a server there are probes or ports: %+v", c)
		}
	})
	t.Run("privileged has neither capabilities nor the way round read-only sysctls", func(t *testing.T) {
		_, c := pod(t, "privileged")
		if sc := c.SecurityContext; !*sc.Privileged || sc.Capabilities != nil || sc.AllowPrivilegeEscalation != nil {
			t.Errorf("security context %+v", sc)
		}
		for _, m := range c.VolumeMounts {
			if m.Name == "sysctls" {
				t.Error("sysctls are mounted")
			}
		}
	})
	t.Run("image", func(t *testing.T) {
		for variant, want := range map[string]string{
			"everything": "registry.example/weir:v9",
			"a digest":   "ghcr.io/weirlb/weir@sha256:" + strings.Repeat("0", 64),
		} {
			if _, c := pod(t, variant); c.Image != want {
				t.Errorf("%s: %s, want %s", variant, c.Image, want)
			}
		}
	})
}

// What stands under config reaches the file as it is.
func TestChartPassesTheConfigurationThrough(t *testing.T) {
	var text string
	for _, o := range mustTemplate(t, variants["everything"]) {
		if o.GetKind() == "ConfigMap" && strings.HasPrefix(o.GetName(), "weir-") && o.GetLabels()["grafana_dashboard"] == "" {
			text, _, _ = unstructured.NestedString(o.Object, "data", "weir.yaml")
		}
	}
	var got, want map[string]any
	if err := yaml.Unmarshal([]byte(text), &got); err != nil {
		t.Fatal(err)
	}
	const config = `
apiVersion: weir.dev/v1alpha1
kind: WeirConfiguration
discovery: {kubernetes: {legacyEndpoints: true}}
interfaces: [{name: eno1, mode: zerocopy}, {name: eno2, mode: native}]
metricsBindAddress: 0.0.0.0:9464
statusPage: {bindAddress: 0.0.0.0:9466, tokenFile: /etc/weir-token/token}
healthzBindAddress: "[::]:9465"
conntrack: {maxFlows: 1000000}
flood: {newConnectionsPerPrefix: 500, ipv4PrefixLength: 32, ipv6PrefixLength: 48}
drain: {notReadySeconds: 15, timeoutSeconds: 45}
onStop: auto
death: {holdSeconds: 30}
`
	if err := yaml.Unmarshal([]byte(config), &want); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if strings.Contains(text, "e+") {
		t.Errorf("a number has become a float:\n%s", text)
	}
}

// The kubelet waits for longer than a drain takes, whatever that is.
func TestChartWaitsForTheDrain(t *testing.T) {
	for values, want := range map[string]int64{
		"": 75,
		"config: {drain: {notReadySeconds: 5, timeoutSeconds: 600}}": 620,
		"config: {drain: {notReadySeconds: 0, timeoutSeconds: 0}}":   15,
		"config: {drain: null}":             40,
		"terminationGracePeriodSeconds: 61": 61,
	} {
		if got := *daemonSet(t, mustTemplate(t, values)).Spec.Template.Spec.TerminationGracePeriodSeconds; got != want {
			t.Errorf("%q: %d s, want %d", values, got, want)
		}
	}
}

// A changed configuration is another pod template, and no pod of the one before reads it: a change goes
// node by node, whatever the field.
func TestAChangedConfigurationIsARollout(t *testing.T) {
	rendered := func(objects []*unstructured.Unstructured) (name string, pods corev1.PodTemplateSpec) {
		pods = daemonSet(t, objects).Spec.Template
		for _, v := range pods.Spec.Volumes {
			if v.ConfigMap != nil && v.Name == "config" {
				name = v.ConfigMap.Name
			}
		}
		if slices.Contains(pods.Spec.Containers[0].Args, "--watch-config") {
			t.Error("a running Weir takes over a change of the ConfigMap")
		}
		for _, o := range objects {
			if o.GetKind() == "ConfigMap" && o.GetName() == name {
				if immutable, _, _ := unstructured.NestedBool(o.Object, "immutable"); !immutable {
					t.Error("the ConfigMap can be changed")
				}
				return name, pods
			}
		}
		t.Fatalf("there is no ConfigMap %q", name)
		return "", pods
	}
	base, template := rendered(mustTemplate(t, ""))
	if _, got := rendered(mustTemplate(t, "dashboards: {enabled: true}")); !cmp.Equal(got, template) {
		t.Error("the pods change with something else")
	}
	for _, values := range []string{
		"workers: {count: 2}", "logging: {level: debug}", "clusterIPs: true", "protectedPorts: [22]", "nodePortAddresses: []",
		"loadBalancerClass: weir.dev/egde", "forwarding: {mode: ipip}", "announce: {prefixes: [192.0.2.0/24]}",
	} {
		if name, _ := rendered(mustTemplate(t, "config: {"+values+"}")); name == base {
			t.Errorf("another %s is in the same ConfigMap", values)
		}
	}
	overlay, err := kustomizeBuild(kustomizeDir)
	if err != nil {
		t.Fatal(err)
	}
	rendered(overlay)
}

// The notes name the nodes by their selector.
func TestNotesNameTheNodes(t *testing.T) {
	_, notes, err := helmTemplate(`{allNodes: false, nodeSelector: {node-role.kubernetes.io/edge: "", zone: a}}`)
	if err != nil {
		t.Fatal(err)
	}
	const want = "starts on the nodes with kubernetes.io/os=linux and node-role.kubernetes.io/edge and zone=a,\nnode by node"
	if !strings.Contains(notes, want) {
		t.Errorf("the notes do not say %q:\n%s", want, notes)
	}
}

func TestChartRefuses(t *testing.T) {
	for _, tt := range []struct{ name, values, want string }{
		{"a value that is not known", `hostNetwork: false`, "hostNetwork"},
		{"a nested value that is not known", `image: {tagg: v1}`, "tagg"},
		{"no interface", `config: {interfaces: []}`, "interfaces"},
		{"another kind of configuration", `config: {kind: KubeProxyConfiguration}`, "kind"},
		{"an attach mode that is not known", `config: {interfaces: [{name: eth0, mode: fast}]}`, "mode"},
		{"an interface by name and prefix", `config: {interfaces: [{name: eth0, cidr: 192.0.2.0/24}]}`, "oneOf"},
		{"an interface by nothing", `config: {interfaces: [{mode: auto}]}`, "oneOf"},
		{"no default route", `config: {interfaces: [{defaultRoute: false}]}`, "defaultRoute"},
		{"a prefix without a length", `config: {interfaces: [{cidr: 192.0.2.0}]}`, "cidr"},
		{"a field that is not known", `config: {statuspage: {bindAddress: "127.0.0.1:9466"}}`, "statuspage"},
		{"a field of a part that is not known", `config: {conntrack: {maxFlow: 100000}}`, "maxFlow"},
		{"a field of a router that is not known", `config: {announce: {peers: [{asn: 64512, adress: 192.0.2.1}]}}`, "adress"},
		{"no worker", `config: {workers: {count: 0}}`, "count"},
		{"two sources", `config: {discovery: {manifests: {path: /x}}}`, "discovery"},
		{"two pods on a node", `updateStrategy: {rollingUpdate: {maxSurge: 1}}`, "maxSurge"},
		{"no word on which nodes", `allNodes: false`, "say which nodes take traffic"},
		{"an operating system for nodes", `{allNodes: false, nodeSelector: {kubernetes.io/os: linux}}`, "say which nodes take traffic"},
		{"a kill in the middle of the drain", `terminationGracePeriodSeconds: 60`, "must be more than the 60 s"},
		{"a drain that is not known", `config: {drain: {seconds: 5}}`, "seconds"},
		{"a relative path", `hostPaths: {run: run/weir}`, "run"},
		{"a tag as digest", `image: {digest: v1}`, "digest"},
		{"scraping the loopback", `prometheus: {serviceMonitor: {enabled: true}}`, "config.metricsBindAddress 127.0.0.1:9464 is the node's loopback"},
		{"scraping nothing", "config: {metricsBindAddress: \"\"}\nprometheus: {serviceMonitor: {enabled: true}}", "config.metricsBindAddress is empty"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, _, err := helmTemplate(tt.values)
			if err == nil {
				t.Fatal("it renders")
			}
			if !strings.Contains(err.Error(), tt.want) {
				t.Errorf("the error does not say %q: %v", tt.want, err)
			}
		})
	}
}

func TestChartLint(t *testing.T) {
	v, err := common.ParseKubeVersion("v1.37.1")
	if err != nil {
		t.Fatal(err)
	}
	for name, values := range variants {
		over, err := onAllNodes(values)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range lint.RunAll(chartDir, over, namespace, lint.WithKubeVersion(v)).Messages {
			// An icon is for catalogues.
			if m.Severity > support.InfoSev {
				t.Errorf("%s: %v", name, m)
			}
		}
	}
}
