package manifest

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/weirlb/weir/topology"
)

// annotationTopologyKeys carries topologyKeys where the Kubernetes API has no
// field for them any more (it had spec.topologyKeys from 1.17 to 1.21).
const annotationTopologyKeys = "weir.dev/topology-keys"

// decodeService decodes and checks a Service. spec.topologyKeys, which the
// current API type lacks, becomes the annotation.
func decodeService(key Key, text []byte, prefix string) (any, []fault) {
	svc := new(corev1.Service)
	if faults := unmarshal(text, svc, prefix); faults != nil {
		return nil, faults
	}
	var old struct {
		Spec struct {
			TopologyKeys []string `json:"topologyKeys"`
		} `json:"spec"`
	}
	if faults := unmarshal(text, &old, prefix); faults != nil {
		return nil, faults
	}
	svc.Namespace = key.Namespace
	faults := validate(validateService(svc), prefix)
	if keys := old.Spec.TopologyKeys; len(keys) > 0 {
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
	}
	return svc, faults
}
