package deploy

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/weirlb/weir/discovery/addresspool"
	"github.com/weirlb/weir/discovery/addresspool/definition"
	"github.com/weirlb/weir/discovery/kube/kubetest"
)

//go:generate go test -run ^TestDefinitionsAreCurrent$ -update .

var update = flag.Bool("update", false, "write the definitions of resources")

// definitionFiles have the definitions: Helm installs those of crds with a release, and neither changes
// nor removes them.
var definitionFiles = []string{"helm/weir/crds/weir.dev.yaml", "kustomize/crds/weir.dev.yaml"}

func definitions(t *testing.T) []byte {
	t.Helper()
	all, err := definition.All()
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	b.WriteString("# Written by make generate from discovery/addresspool/definition.\n")
	for _, d := range all {
		text, err := yaml.Marshal(d)
		if err != nil {
			t.Fatal(err)
		}
		b.WriteString("---\n")
		b.Write(text)
	}
	return b.Bytes()
}

// The shipped definitions are those of the structs that decode the objects.
func TestDefinitionsAreCurrent(t *testing.T) {
	want := definitions(t)
	for _, file := range definitionFiles {
		if *update {
			if err := os.WriteFile(file, want, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		got, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), string(got)); diff != "" {
			t.Errorf("%s is not current: run make generate (-want +got):\n%s", file, diff)
		}
	}
}

const validPeer = `myASN: 64512, peerASN: 64513, peerAddress: 192.0.2.254`

// What a node would refuse of an object by itself the API server refuses too, with the field; and
// what it takes, a node takes.
func TestKubeDefinitionsRefuseWhatNodesRefuse(t *testing.T) {
	c := kubetest.Require(t, kubetest.Options{NoControllers: true})
	apply := c.Applier(t)
	text, err := os.ReadFile(definitionFiles[0])
	if err != nil {
		t.Fatal(err)
	}
	apply.Definitions(string(text))
	apply.Namespace("weir-system")
	for i, x := range []struct{ kind, spec, field string }{
		{"AddressPool", `addresses: [192.0.2.0/24, 198.51.100.9-198.51.100.20, "198.51.101.9 - 198.51.101.20", "2001:db8::/64", "2001:db9::1-2001:db9::2"]`, ""},
		{"AddressPool", `addresses: [192.0.2.0/24], autoAssign: false, avoidBuggyIPs: true, serviceAllocation: {priority: 5, namespaces: [a], namespaceSelectors: [{matchLabels: {x: z}}], serviceSelectors: [{matchExpressions: [{key: k, operator: In, values: [v]}]}]}`, ""},
		{"AddressPool", `addresses: []`, "spec.addresses"},
		{"AddressPool", ``, "spec.addresses"},
		{"AddressPool", `addresses: [192.0.2.0]`, "spec.addresses[0]"},
		{"AddressPool", `addresses: [192.0.2.0/24], serviceAllocation: {priority: -1}`, "spec.serviceAllocation.priority"},
		{"AddressPool", `addresses: [192.0.2.0/24], serviceAllocation: {serviceSelectors: [{matchExpressions: [{key: k, operator: Like}]}]}`, "spec.serviceAllocation.serviceSelectors[0].matchExpressions[0].operator"},
		{"AddressPool", `addresses: [192.0.2.0/24], serviceAllocation: {serviceSelectors: [{matchExpressions: [{key: k, operator: In}]}]}`, "spec.serviceAllocation.serviceSelectors[0].matchExpressions[0]"},
		{"AddressPool", `addresses: [192.0.2.0/24], protocol: bgp`, "spec.protocol"},
		{"BGPAdvertisement", ``, ""},
		{"BGPAdvertisement", `aggregationLength: 32, aggregationLengthV6: 128, localPref: 100, communities: ["65535:65282", "large:1:2:3"], ipAddressPoolSelectors: [{matchLabels: {zone: east}}], nodeSelectors: [{matchLabels: {rack: "7"}}], peers: [p]`, ""},
		{"BGPAdvertisement", `aggregationLength: 33`, "spec.aggregationLength"},
		{"BGPAdvertisement", `aggregationLengthV6: 0`, "spec.aggregationLengthV6"},
		{"BGPAdvertisement", `localPref: -1`, "spec.localPref"},
		{"BGPAdvertisement", `serviceSelectors: [{matchLabels: {a: b}}], aggregationLength: 32, aggregationLengthV6: 128`, ""},
		{"BGPAdvertisement", `serviceSelectors: [{matchLabels: {a: b}}], aggregationLengthV6: 64`, "aggregationLength"},
		{"BGPAdvertisement", `nodeSelectors: [{matchExpressions: [{key: rack, operator: Like}]}]`, "spec.nodeSelectors[0].matchExpressions[0].operator"},
		{"BGPPeer", validPeer, ""},
		{"BGPPeer", validPeer + `, peerPort: 180, holdTime: 90s, keepaliveTime: 30s, routerID: 192.0.2.7, ebgpMultiHop: true, sourceAddress: 192.0.2.9, disableMP: true, passwordSecret: {name: x}`, ""},
		{"BGPPeer", `myASN: 64512, peerASN: 64513, interface: eth0`, ""},
		{"BGPPeer", validPeer + `, vrf: ""`, ""},
		{"BGPPeer", `myASN: 0, peerASN: 64513, peerAddress: 192.0.2.254`, "spec.myASN"},
		{"BGPPeer", `myASN: 64512, peerAddress: 192.0.2.254`, "peerASN"},
		{"BGPPeer", `myASN: 64512, peerASN: 64513`, "peerAddress"},
		{"BGPPeer", validPeer + `, interface: eth0`, "peerAddress"},
		{"BGPPeer", `myASN: 64512, peerASN: 64513, peerAddress: router.example`, "spec.peerAddress"},
		{"BGPPeer", `myASN: 64512, peerASN: 64512, peerAddress: 192.0.2.254, ebgpMultiHop: true`, "ebgpMultiHop"},
		{"BGPPeer", validPeer + `, holdTime: 2s`, "spec.holdTime"},
		{"BGPPeer", validPeer + `, holdTime: soon`, "spec.holdTime"},
		{"BGPPeer", validPeer + `, keepaliveTime: soon`, "spec.keepaliveTime"},
		{"BGPPeer", validPeer + `, peerPort: 70000`, "spec.peerPort"},
		{"BGPPeer", validPeer + `, routerID: x`, "spec.routerID"},
		{"BGPPeer", validPeer + `, sourceAddress: x`, "spec.sourceAddress"},
		{"BGPPeer", validPeer + `, password: x`, "spec.password"},
		{"BGPPeer", validPeer + `, connectTime: 60s`, "spec.connectTime"},
		{"BGPPeer", validPeer + `, enableGracefulRestart: true`, ""},
		{"BGPPeer", validPeer + `, enableGracefulRestart: true, bfdProfile: b`, "enableGracefulRestart"},
		{"BGPPeer", validPeer + `, dualStackAddressFamily: true`, "spec.dualStackAddressFamily"},
		{"BGPPeer", validPeer + `, localASN: 64514`, ""},
		{"BGPPeer", validPeer + `, localASN: 64513`, "localASN"},
		{"BGPPeer", validPeer + `, dynamicASN: external`, "peerASN"},
		{"BGPPeer", `myASN: 64512, dynamicASN: external, localASN: 64514, peerAddress: 192.0.2.254`, ""},
		{"BGPPeer", `myASN: 64512, dynamicASN: internal, peerAddress: 192.0.2.254`, ""},
		{"BGPPeer", `myASN: 64512, dynamicASN: internal, localASN: 64514, peerAddress: 192.0.2.254`, "localASN"},
		{"BGPPeer", `myASN: 64512, dynamicASN: internal, ebgpMultiHop: true, peerAddress: 192.0.2.254`, "ebgpMultiHop"},
		{"BGPPeer", `myASN: 64512, dynamicASN: other, peerAddress: 192.0.2.254`, "spec.dynamicASN"},
		{"BGPPeer", validPeer + `, vrf: red`, "spec.vrf"},
		{"BGPPeer", validPeer + `, bfdProfile: b, ebgpMultiHop: true`, "bfdProfile"},
		{"BGPPeer", validPeer + `, bfdProfile: b, sourceAddress: 192.0.2.9`, "bfdProfile"},
		{"BGPPeer", `myASN: 64512, peerASN: 64513, interface: eth0, bfdProfile: b`, "bfdProfile"},
		{"BFDProfile", `receiveInterval: 380, transmitInterval: 270, detectMultiplier: 3, minimumTtl: 254, echoInterval: 50`, ""},
		{"BFDProfile", `echoMode: true`, "spec.echoMode"},
		{"BFDProfile", `passiveMode: true`, "spec.passiveMode"},
		{"BFDProfile", `receiveInterval: 1`, "spec.receiveInterval"},
		{"BFDProfile", `transmitInterval: 60001`, "spec.transmitInterval"},
		{"BFDProfile", `detectMultiplier: 1`, "spec.detectMultiplier"},
		{"Community", `communities: [{name: a, value: "65535:65281"}, {name: b, value: "large:1:2:3"}]`, ""},
		{"Community", `communities: [{name: a, value: "1:2:3"}]`, "spec.communities[0].value"},
		{"Community", `communities: [{name: a, value: none}]`, "spec.communities[0].value"},
	} {
		manifest := fmt.Sprintf("{apiVersion: weir.dev/v1alpha1, kind: %s, metadata: {namespace: weir-system, name: n%d}, spec: {%s}}", x.kind, i, x.spec)
		refusal := ""
		if err := apply.Apply(apply.Objects(manifest)[0]); err != nil {
			refusal = err.Error()
		}
		json, err := yaml.YAMLToJSON([]byte(manifest))
		if err != nil {
			t.Fatal(err)
		}
		fault := ""
		if f := addresspool.Decode([]addresspool.Object{{JSON: json}}).Faults; len(f) > 0 {
			fault = f[0].Error()
		}
		absent := strings.Contains(fault, "BFDProfile") || strings.Contains(fault, "no BGPPeer") // objects that a spec names
		if x.field == "" && (refusal != "" || fault != "" && !absent) {
			t.Errorf("%s: the API server says %q, a node %q", manifest, refusal, fault)
		}
		if x.field != "" && (!strings.Contains(refusal, x.field) || !strings.Contains(fault, x.field)) {
			t.Errorf("%s: the API server says %q, a node %q, want %s", manifest, refusal, fault, x.field)
		}
	}
}
