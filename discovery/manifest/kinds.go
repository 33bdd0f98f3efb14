package manifest

//lint:file-ignore SA1019 Endpoints are deprecated, and served as long as people write them.

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	discoveryv1beta1 "k8s.io/api/discovery/v1beta1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/weirlb/weir/discovery"
	"github.com/weirlb/weir/discovery/similar"
)

// keyOf names the object that m begins; false if Weir does not use the kind.
func keyOf(m *meta) (Key, bool) {
	switch group := m.group(); {
	case group == "" && (m.Kind == "Node" || m.Kind == "Service" || m.Kind == "Endpoints"),
		group == discoveryv1.GroupName && m.Kind == "EndpointSlice",
		group == gatewayv1.GroupName && gatewayKinds[m.Kind]:
		return m.key(m.Kind), true
	}
	return Key{}, false
}

// key is the key of an object of that kind.
func (m *meta) key(kind string) Key {
	switch {
	case kind == "Node" || kind == "GatewayClass":
		return Key{Kind: kind, Name: m.Metadata.Name}
	case m.Metadata.Namespace == "":
		return Key{kind, corev1.NamespaceDefault, m.Metadata.Name}
	}
	return Key{kind, m.Metadata.Namespace, m.Metadata.Name}
}

// typed decodes an object of a wanted kind and checks it.
func typed(apiVersion string, key Key, text []byte, prefix string) decoded {
	switch {
	case key.Kind == "Service" && apiVersion == "v1":
		return decodeService(key, text, prefix)
	case key.Kind == "Endpoints" && apiVersion == "v1":
		ep := new(corev1.Endpoints)
		return decodeInto(ep, text, prefix, func() verdict { ep.Namespace = key.Namespace; return checkEndpoints(ep) })
	case key.Kind == "Node" && apiVersion == "v1":
		node := new(corev1.Node)
		return decodeInto(node, text, prefix, func() verdict { return checkNode(node) })
	case key.Kind == "EndpointSlice" && apiVersion == "discovery.k8s.io/v1":
		slice := new(discoveryv1.EndpointSlice)
		return decodeInto(slice, text, prefix, func() verdict { slice.Namespace = key.Namespace; return checkSlice(slice) })
	case key.Kind == "EndpointSlice" && apiVersion == "discovery.k8s.io/v1beta1":
		old, slice := new(discoveryv1beta1.EndpointSlice), (*discoveryv1.EndpointSlice)(nil)
		out := decodeInto(old, text, prefix, func() verdict {
			slice = discovery.FromV1beta1(old)
			slice.Namespace = key.Namespace
			return checkSlice(slice)
		})
		out.value = slice
		return out
	case gatewayKinds[key.Kind] && apiVersion == gatewayVersion:
		return decodeGateway(key, text, prefix)
	}
	return decoded{faults: []fault{{joinPath(prefix, "apiVersion"),
		fmt.Sprintf("%s: %s is read as %s", unsupported(apiVersion), key.Kind, versions[key.Kind])}}}
}

// decodeInto decodes an object and, if that succeeds, checks it.
func decodeInto(value any, text []byte, prefix string, check func() verdict) decoded {
	unknown, faults := unmarshal(text, value, prefix)
	if faults != nil {
		return decoded{faults: faults}
	}
	return finish(value, unknown, check(), prefix)
}

// skip is a document of another kind. The object that was meant is named if its kind, or the API
// version, is probably misspelt.
func skip(m *meta, o object, prefix string) object {
	o.skipped = discovery.Shortened(strings.TrimSpace(m.APIVersion+" "+m.Kind), maxKind)
	_, exact := versions[m.Kind]
	kind := m.Kind
	if !exact {
		if kind = similar.Name(m.Kind, slices.Sorted(maps.Keys(versions))); kind == "" || !m.nearGroup() {
			return o
		}
	}
	if o.meant, o.misspelt = kind, joinPath(prefix, "kind"); exact {
		o.misspelt = joinPath(prefix, "apiVersion")
	}
	o.foreign = !m.nearGroup() || m.group() == gatewayv1.GroupName && otherRoutes[m.Kind]
	if o.key = m.key(kind); nameFault(o.key) != "" {
		o.key = Key{}
	}
	return o
}

// maxKind bounds the kind that a report names, in bytes.
const maxKind = 200

// otherRoutes are kinds of the Gateway API that are not read, and resemble kinds that are.
var otherRoutes = map[string]bool{"HTTPRoute": true, "TLSRoute": true, "GRPCRoute": true}

// nearGroup reports whether the API group of m is that of a kind that is read, or resembles it.
func (m *meta) nearGroup() bool {
	return m.group() == "" || similar.Name(m.group(), []string{discoveryv1.GroupName, gatewayv1.GroupName}) != ""
}

func (m *meta) group() string {
	group, _, found := strings.Cut(m.APIVersion, "/")
	if !found {
		return ""
	}
	return group
}

func unsupported(value string) string {
	return fmt.Sprintf("Unsupported value: %q", discovery.Shortened(value, maxKind))
}

var versions = map[string]string{
	"Service":       "v1",
	"Endpoints":     "v1",
	"Node":          "v1",
	"EndpointSlice": "discovery.k8s.io/v1 or v1beta1",

	"GatewayClass":   gatewayVersion,
	"Gateway":        gatewayVersion,
	"TCPRoute":       gatewayVersion,
	"UDPRoute":       gatewayVersion,
	"ReferenceGrant": gatewayVersion,
}

func nameFault(key Key) string {
	if key.Name == "" {
		return "Required value"
	}
	if reasons := apivalidation.NameIsDNSSubdomain(key.Name, false); len(reasons) > 0 {
		return fmt.Sprintf("Invalid value: %.80q: %s", key.Name, reasons[0])
	}
	if key.Namespace != "" && len(validation.IsDNS1123Label(key.Namespace)) > 0 {
		return fmt.Sprintf("Invalid namespace: %.80q", key.Namespace)
	}
	return ""
}
