package config

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
)

// DenyList is a list of clients that may begin no connection with a frontend, at most 16 lists.
// Their packets are dropped without an answer, before limits and routes are looked at, and counted as
// denied, also pings of frontends by lists of the node: since Linux 5.10 in the steering program, of which weir drops and
// weir capture see nothing: a SYN costs a third (IPv4) or half (IPv6) of one that the packet loop refuses,
// with 1,000,000 prefixes, whose change takes half a second (perf/results/denylists.txt). Clients of the node and its pods are no exception: leave private
// prefixes out of a list that has them. Frontends of the kernel and of kube-proxy are not protected,
// nor is anything while Weir is stopped. After a crash the steering program denies until the next
// start, or weir cleanup.
type DenyList struct {
	// Name is the name in status and metrics.
	Name string `json:"name"`
	// File has a prefix or an address per line, at most 1,048,576; text from # or ; on is a
	// comment. A change is applied when the file has been the same for 2 s, without a restart. At a
	// start a line with an error is fatal; later it is a problem (deny-list), and the last list goes
	// on. An address on several lists counts for the first. A prefix takes at most 13 bytes of memory
	// in IPv4, 47 in IPv6; while a list is read, 200 more.
	File string `json:"file,omitempty"`
	// ConfigMap is NAMESPACE/NAME of a ConfigMap, instead of file: the values in data are lists as in a
	// file. It is read from the API server, which allows a ConfigMap 1 MiB, some 60,000 prefixes of
	// IPv4: a larger list needs a file. A change is applied at once. An error, or no ConfigMap, is a
	// problem (deny-list), also at a start: the last list goes on, which stateDir keeps, and a list
	// that was never read is empty. The node may list and watch this ConfigMap: the chart has the Role,
	// kustomize the component denylist.
	ConfigMap string `json:"configMap,omitempty"`
	// Established says what the flows of a client do that comes on the list: end or keep. The
	// default is end: no packet of the client passes any more.
	Established string `json:"established"`
	// Scope says whose frontends the list protects: node, all of them, or services, those of Services
	// that name the list in the annotation weir.dev/deny-lists. The default is node. A node leaves
	// a Service that names a list it lacks to the kernel: configure all nodes first. The packet loop
	// alone denies clients of a Service with a range of ports.
	Scope string `json:"scope"`
}

// maxDenyLists is lb.MaxDenyLists.
const maxDenyLists = 16

// Values of denyLists[].established and denyLists[].scope.
const (
	DeniedEnd     = "end"
	DeniedKeep    = "keep"
	ScopeNode     = "node"
	ScopeServices = "services"
)

func validateDenyLists(c *Configuration, r *report) {
	if n := len(c.DenyLists); n > maxDenyLists {
		r.addf("denyLists", "at most %d lists, are %d", maxDenyLists, n)
	}
	seen := map[string]bool{}
	for i, l := range c.DenyLists {
		at := func(field string) string { return fmt.Sprintf("denyLists[%d].%s", i, field) }
		if strings.ContainsAny(l.Name, ", \t") {
			r.addf(at("name"), "must have no comma and no space: Services name lists by weir.dev/deny-lists, is %q", l.Name)
		}
		if l.Name == "" || seen[l.Name] {
			r.addf(at("name"), "must be a name of its own, is %q", l.Name)
		}
		seen[l.Name] = true
		validateDenySource(c, &l, at, r)
		if e := l.Established; e != "" && e != DeniedEnd && e != DeniedKeep {
			r.addf(at("established"), "must be end or keep, is %q", e)
		}
		if s := l.Scope; s != "" && s != ScopeNode && s != ScopeServices {
			r.addf(at("scope"), "must be node or services, is %q", s)
		}
	}
}

func validateDenySource(c *Configuration, l *DenyList, at func(string) string, r *report) {
	namespace, name, _ := strings.Cut(l.ConfigMap, "/")
	switch {
	case l.File != "" && l.ConfigMap != "":
		r.addf(at("configMap"), "has both file and configMap: give one")
	case l.ConfigMap == "" && !filepath.IsAbs(l.File):
		r.addf(at("file"), "must be an absolute path, or configMap be given, is %q", l.File)
	case l.ConfigMap == "":
	case len(validation.IsDNS1123Label(namespace)) > 0 || len(validation.IsDNS1123Subdomain(name)) > 0:
		r.addf(at("configMap"), "must be NAMESPACE/NAME of a ConfigMap, is %q", l.ConfigMap)
	case c.Discovery.Kubernetes == nil:
		r.addf(at("configMap"), "needs discovery.kubernetes: give a file")
	}
}

// Object is the name of ConfigMap.
func (l *DenyList) Object() types.NamespacedName {
	namespace, name, _ := strings.Cut(l.ConfigMap, "/")
	return types.NamespacedName{Namespace: namespace, Name: name}
}

// DeniedMaps are the ConfigMaps of lists, each once.
func DeniedMaps(lists []DenyList) (out []types.NamespacedName) {
	for _, l := range lists {
		if l.ConfigMap != "" && !slices.Contains(out, l.Object()) {
			out = append(out, l.Object())
		}
	}
	return out
}
