package manifest

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/weirlb/weir/topology"
)

// annotationTopologyKeys carries topologyKeys where the Kubernetes API has no
// field for them any more (it had spec.topologyKeys from 1.17 to 1.21).
const annotationTopologyKeys = "weir.dev/topology-keys"

// decodeService decodes and checks a Service. spec.topologyKeys, which the
// current API type lacks, becomes the annotation.
func decodeService(key Key, text []byte, prefix string) decoded {
	svc := new(corev1.Service)
	unknown, faults := unmarshal(text, svc, prefix)
	if faults != nil {
		return decoded{faults: faults}
	}
	var old struct {
		Spec struct {
			TopologyKeys []string `json:"topologyKeys"`
		} `json:"spec"`
	}
	if _, faults := unmarshal(text, &old, prefix); faults != nil {
		return decoded{faults: faults}
	}
	unknown = slices.DeleteFunc(unknown, func(path string) bool { return path == "spec.topologyKeys" })
	svc.Namespace = key.Namespace
	out := finish(svc, unknown, checkService(svc), prefix)
	if keys := old.Spec.TopologyKeys; len(keys) > 0 {
		out.faults = append(out.faults, moveTopologyKeys(svc, keys, prefix)...)
	}
	for _, p := range portsOf(svc) {
		if p.number < firstNodePort || p.number > lastNodePort {
			out.remarks = append(out.remarks, remark{note: true, fault: fault{joinPath(prefix, p.field),
				fmt.Sprintf("%d is outside of %d-%d, the node ports of an API server by default", p.number, firstNodePort, lastNodePort)}})
		}
	}
	return out
}

// moveTopologyKeys makes spec.topologyKeys the annotation.
func moveTopologyKeys(svc *corev1.Service, keys []string, prefix string) (faults []fault) {
	local := svc.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
	for _, msg := range topology.ValidateTopologyKeys(keys, local) {
		field, reason, _ := strings.Cut(msg, ": ")
		faults = append(faults, fault{joinPath(prefix, field), reason})
	}
	joined := strings.Join(keys, ",")
	if given, ok := svc.Annotations[annotationTopologyKeys]; ok && given != joined {
		faults = append(faults, fault{joinPath(prefix, "spec.topologyKeys"),
			fmt.Sprintf("Forbidden: the annotation %s says otherwise", annotationTopologyKeys)})
	}
	if svc.Annotations == nil {
		svc.Annotations = map[string]string{}
	}
	svc.Annotations[annotationTopologyKeys] = joined
	return faults
}
