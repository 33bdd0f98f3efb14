package discovery

import (
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/weirlb/weir/discovery/similar"
	"github.com/weirlb/weir/topology"
)

// Annotations of a Service that affect the choice of endpoints. Those for the packet
// path are in options.go.
const (
	// AnnotationTopologyKeys is spec.topologyKeys for API servers that do
	// not have the field: keys with commas between, for example
	// "kubernetes.io/hostname,topology.kubernetes.io/zone,*". A source that
	// finds spec.topologyKeys in a document sets this annotation.
	AnnotationTopologyKeys = "weir.dev/topology-keys"
	// AnnotationTrafficDistribution is PreferSameNode, PreferSameZone or
	// PreferSameRegion: Weir's own choice by nearness where no hints apply.
	AnnotationTrafficDistribution = "weir.dev/traffic-distribution"
	// AnnotationMinReadyPercent is 0 (off) to 100: a tier with a smaller share of ready
	// endpoints hands flows on to the next tier.
	AnnotationMinReadyPercent = "weir.dev/min-ready-percent"
)

const (
	// labelServiceProxyName names the proxy that a Service is meant for.
	labelServiceProxyName = "service.kubernetes.io/service-proxy-name"
	// labelHeadless marks slices of headless Services, which no proxy needs. On a Service it means
	// nothing, as in kube-proxy since 1.37.
	labelHeadless = corev1.IsHeadlessService
	// annotationSourceRanges is the older form of
	// spec.loadBalancerSourceRanges, which has precedence.
	annotationSourceRanges = corev1.AnnotationLoadBalancerSourceRangesKey
)

// annotationOptions are the options that the annotations ask for.
type annotationOptions struct {
	keys         []string
	distribution topology.Distribution
	percent      int
	opts         ServiceOptions
	weights      weights
	// unsupported names the annotation that keeps the Service with the
	// kernel, because ignoring it would change the choice of endpoints.
	unsupported string
	errors      []string
	warnings    []string
}

// parseAnnotations reads the annotations of a Service with these ports, of which spec is those of the
// document. externalLocal is true under externalTrafficPolicy: Local.
func parseAnnotations(annotations map[string]string, externalLocal bool, ports []Port, spec []corev1.ServicePort) annotationOptions {
	var w annotationOptions
	if v, ok := annotations[AnnotationTopologyKeys]; ok {
		w.keys = splitList(v)
		w.checkKeys(externalLocal)
	}
	if v, ok := annotations[AnnotationTrafficDistribution]; ok {
		switch strings.TrimSpace(v) {
		case "":
		case "PreferSameNode":
			w.distribution = topology.PreferSameNode
		case "PreferSameZone", "PreferClose":
			w.distribution = topology.PreferSameZone
		case "PreferSameRegion":
			w.distribution = topology.PreferSameRegion
		default:
			w.errors = append(w.errors, notSupported(annotationPath(AnnotationTrafficDistribution), v,
				`"PreferSameNode", "PreferSameRegion", "PreferSameZone"`))
		}
	}
	if v, ok := annotations[AnnotationMinReadyPercent]; ok {
		n, err := strconv.Atoi(strings.TrimSpace(v))
		if err != nil || n < 0 || n > 100 {
			w.errors = append(w.errors, invalid(annotationPath(AnnotationMinReadyPercent), v, "must be a number between 0 and 100, inclusive"))
		} else {
			w.percent = n
		}
	}
	w.readOptions(annotations)
	w.warnings = unknownAnnotations(annotations, serviceAnnotations)
	w.readHealthCheck(annotations[AnnotationHealthCheck], ports)
	w.readPortRange(annotations[AnnotationPortRange], spec)
	return w
}

// prefix is that of all annotations of Weir.
const prefix = "weir.dev/"

// serviceAnnotations are those that a Service may have.
var serviceAnnotations = func() []string {
	out := []string{AnnotationTopologyKeys, AnnotationTrafficDistribution, AnnotationMinReadyPercent, AnnotationHealthCheck, AnnotationPortRange}
	for _, a := range optionAnnotations {
		out = append(out, a.name)
	}
	for _, name := range addressAnnotations {
		out = append(out, prefix+name)
	}
	return out
}()

// addressAnnotations are those of weir controller.
var addressAnnotations = []string{"address-pool", "loadBalancerIPs", "allow-shared-ip"}

// maxUnknown bounds the warnings of an object.
const maxUnknown = 8

// unknownAnnotations warns of annotations of Weir that have no meaning, or none there.
func unknownAnnotations(annotations map[string]string, known []string) (warnings []string) {
	for name := range annotations {
		if strings.HasPrefix(name, prefix) && !slices.Contains(known, name) {
			warnings = append(warnings, annotationPath(Shortened(name, maxName))+": unknown annotation"+similar.Hint(name, known))
		}
	}
	slices.Sort(warnings)
	return warnings[:min(maxUnknown, len(warnings))]
}

// maxName bounds a name of an annotation in a warning, in bytes.
const maxName = 100

// checkKeys validates w.keys. Errors name them spec.topologyKeys, whatever their source.
func (w *annotationOptions) checkKeys(externalLocal bool) {
	if errs := topology.ValidateTopologyKeys(w.keys, externalLocal); errs != nil {
		w.errors = append(w.errors, errs...)
		w.unsupported = "spec.topologyKeys"
	}
}

func annotationPath(name string) string { return "metadata.annotations[" + name + "]" }

// splitList splits a list at commas and drops the blanks around items; an
// empty text is an empty list.
func splitList(text string) []string {
	if strings.TrimSpace(text) == "" {
		return nil
	}
	items := strings.Split(text, ",")
	for i := range items {
		items[i] = strings.TrimSpace(items[i])
	}
	return items
}
