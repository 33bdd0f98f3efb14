package manifest

import (
	"fmt"

	"k8s.io/apimachinery/pkg/util/validation/field"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// Limits of the API (sigs.k8s.io/gateway-api, the definitions of v1.6).
const (
	maxListeners = 64
	maxAddresses = 16
	maxParents   = 32
	maxRefs      = 16
	maxGrants    = 16
	maxShare     = 1000000 // of a reference
)

// decodeGateway decodes an object of the Gateway API.
func decodeGateway(key Key, text []byte, prefix string) decoded {
	switch key.Kind {
	case "GatewayClass":
		o := new(gatewayv1.GatewayClass)
		return decodeInto(o, text, prefix, func() verdict { return checkClass(o) })
	case "Gateway":
		o := new(gatewayv1.Gateway)
		return decodeInto(o, text, prefix, func() verdict { o.Namespace = key.Namespace; return checkGateway(o) })
	case "TCPRoute":
		o := new(gatewayv1.TCPRoute)
		return decodeInto(o, text, prefix, func() verdict {
			o.Namespace = key.Namespace
			var rules [][]gatewayv1.BackendRef
			for i := range o.Spec.Rules {
				rules = append(rules, o.Spec.Rules[i].BackendRefs)
			}
			return checkRoute(o.Spec.ParentRefs, rules)
		})
	case "UDPRoute":
		o := new(gatewayv1.UDPRoute)
		return decodeInto(o, text, prefix, func() verdict {
			o.Namespace = key.Namespace
			var rules [][]gatewayv1.BackendRef
			for i := range o.Spec.Rules {
				rules = append(rules, o.Spec.Rules[i].BackendRefs)
			}
			return checkRoute(o.Spec.ParentRefs, rules)
		})
	}
	o := new(gatewayv1.ReferenceGrant)
	return decodeInto(o, text, prefix, func() verdict { o.Namespace = key.Namespace; return checkGrant(o) })
}

// required fails if a field is empty.
func (v *verdict) required(path *field.Path, value string) {
	if value == "" {
		v.fail(field.Required(path, ""))
	}
}

// count fails if a list has too few or too many items.
func (v *verdict) count(path *field.Path, n, least, most int) {
	switch {
	case n < least:
		v.fail(field.Required(path, fmt.Sprintf("must have at least %d item", least)))
	case n > most:
		v.fail(field.TooMany(path, n, most))
	}
}

func checkClass(c *gatewayv1.GatewayClass) (v verdict) {
	v.meta(&c.ObjectMeta)
	v.required(field.NewPath("spec", "controllerName"), string(c.Spec.ControllerName))
	return v
}

func checkGateway(g *gatewayv1.Gateway) (v verdict) {
	v.meta(&g.ObjectMeta)
	spec := field.NewPath("spec")
	v.required(spec.Child("gatewayClassName"), string(g.Spec.GatewayClassName))
	v.count(spec.Child("listeners"), len(g.Spec.Listeners), 1, maxListeners)
	v.count(spec.Child("addresses"), len(g.Spec.Addresses), 0, maxAddresses)
	names := map[gatewayv1.SectionName]bool{}
	for i := range g.Spec.Listeners {
		l, at := &g.Spec.Listeners[i], spec.Child("listeners").Index(i)
		v.required(at.Child("name"), string(l.Name))
		v.required(at.Child("protocol"), string(l.Protocol))
		v.portNumber(at.Child("port"), l.Port)
		if names[l.Name] {
			v.fail(field.Duplicate(at.Child("name"), l.Name))
		}
		names[l.Name] = true
	}
	for i, a := range g.Spec.Addresses {
		if a.Value != "" && (a.Type == nil || *a.Type == gatewayv1.IPAddressType) {
			v.ordinaryAddress(spec.Child("addresses").Index(i).Child("value"), a.Value)
		}
	}
	return v
}

func checkRoute(parents []gatewayv1.ParentReference, rules [][]gatewayv1.BackendRef) (v verdict) {
	spec := field.NewPath("spec")
	v.count(spec.Child("parentRefs"), len(parents), 0, maxParents)
	for i := range parents {
		at := spec.Child("parentRefs").Index(i)
		v.required(at.Child("name"), string(parents[i].Name))
		if p := parents[i].Port; p != nil {
			v.portNumber(at.Child("port"), *p)
		}
	}
	v.count(spec.Child("rules"), len(rules), 1, 1)
	for i, refs := range rules {
		list := spec.Child("rules").Index(i).Child("backendRefs")
		v.count(list, len(refs), 1, maxRefs)
		for j := range refs {
			ref, at := &refs[j], list.Index(j)
			v.required(at.Child("name"), string(ref.Name))
			switch {
			case ref.Port != nil:
				v.portNumber(at.Child("port"), *ref.Port)
			case ref.Kind == nil || *ref.Kind == "Service":
				v.fail(field.Required(at.Child("port"), "must have port for Service reference"))
			}
			if w := ref.Weight; w != nil && (*w < 0 || *w > maxShare) {
				v.fail(field.Invalid(at.Child("weight"), *w, fmt.Sprintf("must be between 0 and %d", maxShare)))
			}
		}
	}
	return v
}

func checkGrant(g *gatewayv1.ReferenceGrant) (v verdict) {
	v.meta(&g.ObjectMeta)
	from, to := field.NewPath("spec", "from"), field.NewPath("spec", "to")
	v.count(from, len(g.Spec.From), 1, maxGrants)
	v.count(to, len(g.Spec.To), 1, maxGrants)
	for i, f := range g.Spec.From {
		v.required(from.Index(i).Child("kind"), string(f.Kind))
		v.required(from.Index(i).Child("namespace"), string(f.Namespace))
	}
	for i, t := range g.Spec.To {
		v.required(to.Index(i).Child("kind"), string(t.Kind))
	}
	return v
}
