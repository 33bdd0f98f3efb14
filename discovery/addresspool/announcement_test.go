package addresspool

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

// The objects of a node are done as they say together, or refused with the field.
func TestAnnouncementOfANode(t *testing.T) {
	const (
		pool  = `IPAddressPool one "addresses":["203.0.113.0/24","2001:db8::/120"]`
		edge  = `BGPPeer edge "myASN":64512,"peerASN":64513,"peerAddress":"192.0.2.1"`
		other = `BGPPeer other "myASN":64512,"peerASN":64513,"peerAddress":"192.0.2.2"`
	)
	for name, c := range map[string]struct {
		objects       []string // kind, name and spec
		node          Node
		peers, routes int
		fault         string
	}{
		"all":                    {objects: []string{pool, edge, other, `BGPAdvertisement a`}, peers: 2, routes: 1},
		"some routers":           {objects: []string{pool, edge, other, `BGPAdvertisement a "peers":["other","edge"]`}, peers: 2, routes: 1},
		"a misspelt router":      {objects: []string{pool, edge, `BGPAdvertisement a "peers":["edeg"]`}, peers: 1, routes: 1, fault: "BGPAdvertisement a: spec.peers[0]: no BGPPeer edeg is in service"},
		"preferences of routers": {objects: []string{pool, edge, other, `BGPAdvertisement a "peers":["edge"],"localPref":100`, `BGPAdvertisement b "peers":["other"],"localPref":200`}, peers: 2, routes: 2},
		"preferences of a router": {objects: []string{pool, edge, other, `BGPAdvertisement a "peers":["edge"],"localPref":100`, `BGPAdvertisement b "peers":["other","edge"],"localPref":200`}, peers: 2, routes: 1,
			fault: "BGPAdvertisement b: spec.localPref: BGPAdvertisement a asks for 100 of the same routes"},
		"a router twice":     {objects: []string{pool, edge, `BGPAdvertisement a "peers":["edge","edge"]`}, peers: 1, fault: "BGPAdvertisement a: spec.peers[1]: edge is there twice"},
		"another number":     {objects: []string{pool, edge, `BGPPeer other "myASN":64514,"peerASN":64513,"peerAddress":"192.0.2.2"`}, peers: 1, fault: "BGPPeer other: spec.myASN: a node has a single number, which is 64512 by BGPPeer edge"},
		"another than given": {objects: []string{pool, edge}, node: Node{ASN: 64515}, fault: "BGPPeer edge: spec.myASN: a node has a single number, which is 64515"},
		"the same router":    {objects: []string{edge, `BGPPeer edge2 "myASN":64512,"peerASN":64513,"peerAddress":"192.0.2.1"`}, peers: 1, fault: "BGPPeer edge2: spec.peerAddress: BGPPeer edge has the same router"},
		"two identifiers":    {objects: []string{edge + `,"routerID":"10.0.0.1"`, other + `,"routerID":"10.0.0.2"`}, peers: 1, fault: "BGPPeer other: spec.routerID: "},
		"a host":             {objects: []string{edge + `,"nodeSelectors":[{"matchLabels":{"kubernetes.io/hostname":"here"}}]`, other + `,"nodeSelectors":[{"matchLabels":{"kubernetes.io/hostname":"there"}}]`}, peers: 1},
		"a label without an API server": {objects: []string{pool, edge + `,"nodeSelectors":[{"matchLabels":{"rack":"7"}}]`, `BGPAdvertisement a`}, routes: 1,
			fault: "BGPPeer edge: spec.nodeSelectors[0].matchLabels: rack cannot be used without an API server"},
		"a label of the Node": {objects: []string{pool, edge + `,"nodeSelectors":[{"matchLabels":{"rack":"7"}}]`, other + `,"nodeSelectors":[{"matchExpressions":[{"key":"rack","operator":"NotIn","values":["7"]}]}]`,
			`BGPAdvertisement a "nodeSelectors":[{"matchExpressions":[{"key":"edge","operator":"Exists"}]}]`}, node: Node{Labels: map[string]string{"rack": "7"}}, peers: 1},
		"the Node's own hostname":    {objects: []string{edge + `,"nodeSelectors":[{"matchLabels":{"kubernetes.io/hostname":"here"}}]`}, node: Node{Labels: map[string]string{Hostname: "here.example"}}},
		"a Secret that is not read":  {objects: []string{edge + `,"passwordSecret":{"name":"key"}`}, fault: "BGPPeer edge: spec.passwordSecret: Secrets are not read"},
		"a Secret":                   {objects: []string{edge + `,"passwordSecret":{"name":"key","namespace":"n"}`}, node: Node{Secret: secretKey}, peers: 1},
		"a Secret that is not there": {objects: []string{edge + `,"passwordSecret":{"name":"other","namespace":"n"}`}, node: Node{Secret: secretKey}, fault: "BGPPeer edge: spec.passwordSecret: no Secret n/other"},
		"two preferences":            {objects: []string{pool, `BGPAdvertisement a "localPref":100`, `BGPAdvertisement b "localPref":200`}, routes: 1, fault: "BGPAdvertisement b: spec.localPref: BGPAdvertisement a asks for 100 of the same routes"},
		"two lengths":                {objects: []string{pool, `BGPAdvertisement a "localPref":100`, `BGPAdvertisement b "aggregationLength":24,"aggregationLengthV6":120`}, routes: 2},
		"beyond the pool":            {objects: []string{pool, `BGPAdvertisement a "aggregationLength":23`}, fault: "BGPAdvertisement a: spec.aggregationLength: must be at least 24: the pools do not have all of 203.0.112.0/23"},
		"beyond the pool, six":       {objects: []string{pool, `BGPAdvertisement a "aggregationLengthV6":64`}, fault: "BGPAdvertisement a: spec.aggregationLengthV6: must be at least 120"},
		"no pool":                    {objects: []string{`BGPAdvertisement a`}, fault: "BGPAdvertisement a: spec.ipAddressPools: no pool is selected"},
	} {
		t.Run(name, func(t *testing.T) {
			var objects []Object
			for _, text := range c.objects {
				parts := append(strings.SplitN(text, " ", 3), "")
				objects = append(objects, Object{Source: "test", JSON: fmt.Appendf(nil,
					`{"apiVersion":"metallb.io/v1beta1","kind":%q,"metadata":{"name":%q},"spec":{%s}}`, parts[0], parts[1], parts[2])})
			}
			c.node.Name = "here"
			config := Decode(objects)
			a := config.Announcement(c.node)
			var faults []string
			for _, f := range append(config.Faults, a.Faults...) {
				faults = append(faults, strings.TrimPrefix(f.Error(), "test: "))
			}
			if len(a.Peers) != c.peers || len(a.Routes) != c.routes || len(faults) != min(len(c.fault), 1) {
				t.Errorf("%d routers, %d routes, faults %q", len(a.Peers), len(a.Routes), faults)
			}
			if len(faults) == 1 && !strings.HasPrefix(faults[0], c.fault) {
				t.Errorf("fault %q, want %q", faults[0], c.fault)
			}
		})
	}
}

// secretKey is Node.Secret of a Secret n/key.
func secretKey(namespace, name string) (string, error) {
	if namespace != "n" || name != "key" {
		return "", fmt.Errorf("no Secret %s/%s", namespace, name)
	}
	return "the password", nil
}

// A BGPPeer has the Secret of no other namespace: authors there did not give it to the session.
func TestSecretsAreOfTheNamespaceOfTheirPeer(t *testing.T) {
	for _, c := range []struct{ namespace, secret, key, fault string }{
		{"n", `{"name":"key"}`, "the password", ""},
		{"n", `{"name":"key","namespace":"n"}`, "the password", ""},
		{"n", `{}`, "", ""},
		{"other", `{"name":"key","namespace":"n"}`, "", "spec.passwordSecret.namespace: must be that of the BGPPeer, other"},
		{"other", `{"name":"key"}`, "", "spec.passwordSecret: no Secret other/key"},
	} {
		a := Decode([]Object{{JSON: fmt.Appendf(nil, `{"apiVersion":"metallb.io/v1beta2","kind":"BGPPeer","metadata":{"name":"p","namespace":%q},
			"spec":{"myASN":1,"peerASN":2,"peerAddress":"192.0.2.1","passwordSecret":%s}}`, c.namespace, c.secret)}}).Announcement(Node{Secret: secretKey})
		if c.fault != "" {
			if len(a.Faults) != 1 || !strings.Contains(a.Faults[0].Error(), c.fault) {
				t.Errorf("%+v: faults %v", c, a.Faults)
			}
			continue
		}
		if len(a.Peers) != 1 || a.Peers[0].Key != c.key {
			t.Errorf("%+v: %+v, %v", c, a.Peers, a.Faults)
		}
	}
}

func TestPrefixesOfARange(t *testing.T) {
	for text, want := range map[string]string{
		"0.0.0.0-255.255.255.255":         "[0.0.0.0/0]",
		"255.255.255.254-255.255.255.255": "[255.255.255.254/31]",
		"192.0.2.1-192.0.2.6":             "[192.0.2.1/32 192.0.2.2/31 192.0.2.4/31 192.0.2.6/32]",
		"2001:db8::ffff-2001:db8::1:0":    "[2001:db8::ffff/128 2001:db8::1:0/128]",
	} {
		r, err := ParseRange(text)
		if err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(r.Prefixes()); got != want {
			t.Errorf("%s: %s, want %s", text, got, want)
		}
		if p := r.Prefixes(); !slices.ContainsFunc(p, func(p netip.Prefix) bool { return p.Contains(r.To) }) {
			t.Errorf("%s: %v is left out", text, r.To)
		}
	}
}
