package discovery

import (
	"fmt"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// String is the annotation's value.
func (r PortRange) String() string { return fmt.Sprintf("%d-%d", r.First, r.Last) }

// readPortRange reads AnnotationPortRange of a Service with these ports.
func (w *annotationOptions) readPortRange(text string, ports []corev1.ServicePort) {
	r, complaint := ReadPortRange(text, ports)
	if complaint != "" {
		w.errors = append(w.errors, annotationPath(AnnotationPortRange)+": "+complaint)
	}
	w.opts.PortRange = r
}

// PortRangeOf is the range of ports that nodes serve for a Service, the zero value if its annotation
// is not valid.
func PortRangeOf(s *corev1.Service) PortRange {
	r, _ := ReadPortRange(s.Annotations[AnnotationPortRange], s.Spec.Ports)
	return r
}

// ReadPortRange reads AnnotationPortRange of a Service with these ports. It is the zero value if the text is empty
// or there is a complaint.
func ReadPortRange(text string, ports []corev1.ServicePort) (PortRange, string) {
	if text = strings.TrimSpace(text); text == "" {
		return PortRange{}, ""
	}
	r, complaint := parsePortRange(text)
	if complaint == "" {
		complaint = r.check(text, ports)
	}
	if complaint != "" {
		return PortRange{}, complaint
	}
	return r, ""
}

func parsePortRange(text string) (r PortRange, complaint string) {
	low, high, _ := strings.Cut(text, "-")
	first, err := strconv.ParseUint(strings.TrimSpace(low), 10, 16)
	last, err2 := strconv.ParseUint(strings.TrimSpace(high), 10, 16)
	if err != nil || err2 != nil || first == 0 || last <= first {
		return r, invalidValue(text, "must be FIRST-LAST, as 10000-20000, with ports between 1 and 65535 and the last above the first")
	}
	return PortRange{uint16(first), uint16(last)}, ""
}

// check says why a Service with these ports cannot have the range, "" if it can.
func (r PortRange) check(text string, ports []corev1.ServicePort) string {
	if len(ports) != 1 {
		return invalidValue(text, fmt.Sprintf("needs a Service with a single port, not %d", len(ports)))
	}
	p := &ports[0]
	if p.Port < int32(r.First) || p.Port > int32(r.Last) {
		return invalidValue(text, fmt.Sprintf("must contain the port of the Service, %d", p.Port))
	}
	if target := p.TargetPort; target != (intstr.IntOrString{}) && target != intstr.FromInt32(p.Port) {
		return invalidValue(text, fmt.Sprintf("needs a targetPort that is the port, %d, or left out, not %s: packets go to the port of the endpoint that they came to", p.Port, target.String()))
	}
	return ""
}
