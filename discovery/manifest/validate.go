package manifest

//lint:file-ignore SA1019 Endpoints are deprecated, and served as long as people write them.

import (
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/weirlb/weir/discovery"
)

// The checks here are those which an API server makes before it stores an
// object, as far as Weir reads the object: a manifest has not passed these.
// They are worded as the API server words them. testdata/apiserver.txt has the answers of an API
// server to several hundred objects.

// verdict is the result of the checks. A finding is an error where the object could be served to
// more clients than meant, elsewhere than meant, or not at all; else it is a warning.
type verdict struct {
	errors, warnings field.ErrorList
	ignored          []fault // fields that an API server ignores, too
}

func (v *verdict) fail(errs ...*field.Error) { v.errors = append(v.errors, errs...) }
func (v *verdict) warn(errs ...*field.Error) { v.warnings = append(v.warnings, errs...) }

// maxObjectFaults bounds the errors, and the warnings, reported of an object.
const maxObjectFaults = 10

// decoded is an object of a document.
type decoded struct {
	value   any
	faults  []fault
	remarks []remark
	// anonymous is true if the document does not identify the object.
	anonymous bool
}

// finish makes the result of unknown fields and checks. Each path gets prefix.
func finish(value any, unknown []string, v verdict, prefix string) decoded {
	out := decoded{value: value, faults: faultsOf(v.errors, prefix)}
	for _, f := range faultsOf(v.warnings, prefix) {
		f.reason += " (an API server refuses it)"
		out.remarks = append(out.remarks, remark{fault: f})
	}
	for _, f := range v.ignored {
		out.remarks = append(out.remarks, remark{fault: fault{joinPath(prefix, f.field), f.reason}})
	}
	remarks, faults, anonymous := judgeUnknown(value, unknown, prefix)
	out.remarks, out.faults, out.anonymous = append(out.remarks, remarks...), append(out.faults, faults...), anonymous
	if len(out.faults) > 0 {
		// An object that does not count has no remarks, and an unknown field may be the cause.
		var unknown []fault
		for _, m := range remarks {
			unknown = append(unknown, m.fault)
		}
		out.faults = append(unknown, out.faults...)
	}
	return out
}

// maxReason bounds the reason of a fault, in bytes: it may contain a value.
const maxReason = 400

// faultsOf turns the API's error list into faults.
func faultsOf(errs field.ErrorList, prefix string) []fault {
	var faults []fault
	for i, e := range errs {
		if i == maxObjectFaults {
			faults = append(faults, fault{prefix, "and more"})
			break
		}
		faults = append(faults, fault{joinPath(prefix, e.Field), discovery.Shortened(e.ErrorBody(), maxReason)})
	}
	return faults
}

// meta checks labels and annotations.
func (v *verdict) meta(m *metav1.ObjectMeta) {
	path := field.NewPath("metadata")
	v.warn(metav1validation.ValidateLabels(m.Labels, path.Child("labels"))...)
	v.warn(apivalidation.ValidateAnnotations(m.Annotations, path.Child("annotations"))...)
}

// messages makes the errors of a value.
func messages(path *field.Path, value any, reasons []string) (errs field.ErrorList) {
	for _, r := range reasons {
		errs = append(errs, field.Invalid(path, value, r))
	}
	return errs
}

func checkNode(node *corev1.Node) (v verdict) {
	v.meta(&node.ObjectMeta)
	return v
}

// address checks an IP address. It reports whether value is an address.
func (v *verdict) address(path *field.Path, value string) bool {
	if a, err := netip.ParseAddr(value); err == nil && !a.Is4In6() && a.Zone() == "" {
		return true
	}
	v.fail(validation.IsValidIPForLegacyField(path, value, true, nil)...)
	_, ok := discovery.ParseAddr(value)
	return ok
}

// ordinaryAddress checks an address that is another machine's: an endpoint's or a frontend's.
func (v *verdict) ordinaryAddress(path *field.Path, value string) {
	if v.address(path, value) {
		v.fail(validateNonSpecial(value, path)...)
	}
}

// validateNonSpecial refuses addresses that cannot be an endpoint's, or a
// frontend's, on another machine.
func validateNonSpecial(value string, path *field.Path) field.ErrorList {
	ip, ok := discovery.ParseAddr(value)
	if !ok {
		return nil // said elsewhere
	}
	reason := ""
	switch {
	case ip.IsUnspecified():
		reason = "may not be unspecified (0.0.0.0 or ::)"
	case ip.IsLoopback():
		reason = "may not be in the loopback range (127.0.0.0/8, ::1/128)"
	case ip.IsLinkLocalUnicast():
		reason = "may not be in the link-local range (169.254.0.0/16, fe80::/10)"
	case ip.IsMulticast():
		reason = "may not be in the multicast range (224.0.0.0/4, ff00::/8)"
	case ip == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		reason = "may not be the broadcast address"
	default:
		return nil
	}
	return field.ErrorList{field.Invalid(path, value, reason)}
}

func (v *verdict) portNumber(path *field.Path, port int32) {
	v.fail(messages(path, port, validation.IsValidPortNum(int(port)))...)
}

func (v *verdict) protocol(path *field.Path, p corev1.Protocol) {
	switch p {
	case "", corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP:
	default:
		v.fail(field.NotSupported(path, p, []corev1.Protocol{"SCTP", "TCP", "UDP"}))
	}
}

// appProtocol is nil where the object has none.
func (v *verdict) appProtocol(path *field.Path, p *string) {
	if p != nil {
		v.warn(messages(path, *p, validation.IsQualifiedName(*p))...)
	}
}

func (v *verdict) nodeName(path *field.Path, name *string) {
	if name != nil {
		v.warn(messages(path, *name, apivalidation.NameIsDNSSubdomain(*name, false))...)
	}
}

func (v *verdict) label(path *field.Path, value string) {
	v.warn(messages(path, value, validation.IsDNS1123Label(value))...)
}
