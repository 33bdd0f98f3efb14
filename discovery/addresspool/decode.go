package addresspool

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/weirlb/weir/discovery/similar"
)

// Groups of the API that have pools.
const (
	GroupMetalLB = "metallb.io"
	GroupWeir    = "weir.dev"
	groupFRR     = "frrk8s.metallb.io" // in MetalLB's examples
)

// Object is an object as JSON.
type Object struct {
	Source string // for errors: a file, or empty
	JSON   []byte
}

// Fault is a reason why an object is not used, or is used in part.
type Fault struct {
	Source, Kind, Namespace, Name string
	Err                           error
	// Used is true if the object is used all the same.
	Used bool
}

// Skipped is an object of a kind that is not read.
type Skipped struct {
	Source, APIVersion, Kind, Namespace, Name string
	// Remedy says what to write in its place, for kinds of pools of other programs.
	Remedy string
}

// String names the object, and the remedy.
func (s *Skipped) String() string {
	text := strings.TrimSpace(s.APIVersion + " " + s.Kind)
	if text == "" {
		text = "an object without a kind"
	}
	if s.Name != "" {
		text += " " + strings.TrimPrefix(s.Namespace+"/"+s.Name, "/")
	}
	if s.Source != "" {
		text = s.Source + ": " + text
	}
	return text + " is not read" + s.Remedy
}

// remedy is what to write in place of an object.
func (h *header) remedy() string {
	group, _, _ := strings.Cut(h.APIVersion, "/")
	switch {
	case group == "cilium.io" && h.Kind == "CiliumLoadBalancerIPPool":
		return ": write an AddressPool of weir.dev/v1alpha1"
	case h.APIVersion == "v1" && h.Kind == "ConfigMap" && h.Metadata.Name == "config":
		return ": MetalLB itself reads it no more since 0.13; write IPAddressPools, BGPPeers and BGPAdvertisements"
	case kinds[group] != nil:
		known := Kinds(group)
		return ": the kinds of " + group + " are " + strings.Join(known, ", ")
	}
	return ""
}

// misnamed is an error if an object of an unknown kind is probably one of a known kind. Other groups have
// kinds of the same names, such as the BGPPeer of Calico: they count if the group is missing or misspelt.
func (h *header) misnamed() error {
	group, _, grouped := strings.Cut(h.APIVersion, "/")
	known := []string{GroupMetalLB, GroupWeir}
	group = similar.Name(group, append(known, groupFRR))
	if !grouped {
		group = GroupMetalLB
	}
	if group == "" {
		return nil
	}
	for _, g := range append([]string{group}, known...) {
		if kind := similar.Name(h.Kind, Kinds(g)); kind != "" {
			return fmt.Errorf("kind: %q is not read (did you mean %s of %s?)", strings.TrimSpace(h.APIVersion+" "+h.Kind), kind, g)
		}
	}
	return nil
}

// Error names object, field and reason.
func (f *Fault) Error() string {
	name := f.Kind + " " + f.Name
	if f.Namespace != "" {
		name = f.Kind + " " + f.Namespace + "/" + f.Name
	}
	if f.Source != "" {
		name = f.Source + ": " + name
	}
	return fmt.Sprintf("%s: %v", name, f.Err)
}

// Unwrap is the reason alone.
func (f *Fault) Unwrap() error { return f.Err }

// Config is the objects that are used.
type Config struct {
	Pools          []Pool
	Advertisements []Advertisement
	// LinkAdvertisements are the L2Advertisements.
	LinkAdvertisements []LinkAdvertisement
	Peers              []Peer
	Communities        map[string]string // alias: value
	BFDProfiles        []BFDProfile
	Faults             []*Fault
	// Skipped are the objects of other kinds.
	Skipped []Skipped
	names   map[string]int   // the place in Pools by name
	ranges  rangeSet[string] // of Pools, with the name
}

// header has the fields that identify an object.
type header struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Name      string            `json:"name"`
		Namespace string            `json:"namespace"`
		Labels    map[string]string `json:"labels"`
	} `json:"metadata"`
	Spec   json.RawMessage   `json:"spec"`
	Items  []json.RawMessage `json:"items"`
	source string
}

// fault is a Fault of the object.
func (h *header) fault(err error, used bool) *Fault {
	return &Fault{h.source, h.Kind, h.Metadata.Namespace, h.Metadata.Name, err, used}
}

// kinds decode the kinds of objects. The key is group, then kind.
var kinds = map[string]map[string]func(*Config, *header) error{
	GroupMetalLB: {
		"IPAddressPool":    (*Config).pool,
		"BGPAdvertisement": (*Config).advertisement,
		"BGPPeer":          (*Config).peer,
		"BFDProfile":       (*Config).bfdProfile,
		"Community":        (*Config).community,
		"L2Advertisement":  (*Config).linkAdvertisement,
		"AddressPool": func(*Config, *header) error {
			return errors.New("spec.protocol: MetalLB has removed this kind in 0.14; use IPAddressPool and BGPAdvertisement")
		},
	},
	groupFRR: {
		"FRRConfiguration": func(*Config, *header) error {
			return errors.New("kind: FRR is not configured; routes of routers are not received")
		},
	},
	GroupWeir: {
		"AddressPool":      (*Config).pool,
		"BGPAdvertisement": (*Config).advertisement,
		"BGPPeer":          (*Config).peer,
		"BFDProfile":       (*Config).bfdProfile,
		"Community":        (*Config).community,
	},
}

// Kinds are the kinds of a group that are read, sorted.
func Kinds(group string) []string {
	var out []string
	for kind := range kinds[group] {
		out = append(out, kind)
	}
	slices.Sort(out)
	return out
}

// Decode reads objects. Those of other groups and kinds, such as Deployments in the same
// file, are passed over; a kind that resembles a known one is a fault. An object with a fault is out of service, all others are in use: nothing
// depends on a webhook.
func Decode(objects []Object) *Config {
	c := &Config{Communities: map[string]string{}, names: map[string]int{}}
	var all []*header
	for _, o := range objects {
		all = append(all, c.headers(o)...)
	}
	// The order of files and of the API server must not decide which of two pools is used.
	slices.SortStableFunc(all, func(a, b *header) int {
		return cmp.Or(strings.Compare(a.Kind, b.Kind), strings.Compare(a.Metadata.Name, b.Metadata.Name), strings.Compare(a.Metadata.Namespace, b.Metadata.Namespace))
	})
	for _, h := range all {
		group, _, _ := strings.Cut(h.APIVersion, "/")
		decode := kinds[group][h.Kind]
		if err := h.misnamed(); decode == nil && err != nil {
			c.Faults = append(c.Faults, h.fault(err, false))
			continue
		}
		if decode == nil {
			m := &h.Metadata
			c.Skipped = append(c.Skipped, Skipped{h.source, h.APIVersion, h.Kind, m.Namespace, m.Name, h.remedy()})
			continue
		}
		if h.Metadata.Name == "" {
			c.Faults = append(c.Faults, h.fault(errors.New("metadata.name: must be set"), false))
			continue
		}
		for _, err := range reasons(decode(c, h)) {
			c.Faults = append(c.Faults, h.fault(err, false))
		}
	}
	c.checkReferences()
	return c
}

// headers are the object, or the items of a List.
func (c *Config) headers(o Object) []*header {
	h := &header{source: o.Source}
	if err := json.Unmarshal(o.JSON, h); err != nil {
		c.Faults = append(c.Faults, h.fault(typeFault("", err), false))
		return nil
	}
	if !strings.HasSuffix(h.Kind, "List") || h.Items == nil {
		return []*header{h}
	}
	var out []*header
	for _, item := range h.Items {
		out = append(out, c.headers(Object{o.Source, item})...)
	}
	return out
}

// PoolSpec is the spec of MetalLB's IPAddressPool.
type PoolSpec struct {
	Addresses     []string        `json:"addresses"`
	AutoAssign    *bool           `json:"autoAssign"`
	AvoidBuggyIPs bool            `json:"avoidBuggyIPs"`
	Allocation    *AllocationSpec `json:"serviceAllocation"`
}

// AllocationSpec is serviceAllocation of PoolSpec.
type AllocationSpec struct {
	Priority           int        `json:"priority"`
	Namespaces         []string   `json:"namespaces"`
	NamespaceSelectors []Selector `json:"namespaceSelectors"`
	ServiceSelectors   []Selector `json:"serviceSelectors"`
}

func (c *Config) pool(h *header) error {
	var spec PoolSpec
	if err := h.spec(&spec); err != nil {
		return err
	}
	var f faults
	p := Pool{Name: h.Metadata.Name, Labels: h.Metadata.Labels, AvoidBuggyIPs: spec.AvoidBuggyIPs, AutoAssign: spec.AutoAssign == nil || *spec.AutoAssign}
	_, twice := c.names[p.Name]
	f.when(twice, "metadata.name: there is another pool of this name")
	f.when(len(spec.Addresses) == 0, "spec.addresses: must have at least one prefix or range")
	var own rangeSet[string]
	for i, text := range spec.Addresses {
		if f.enough() {
			break
		}
		r, err := ParseRange(text)
		if err != nil {
			f.when(true, "spec.addresses[%d]: %w", i, err)
			continue
		}
		if f.overlap(i, text, r, &c.ranges) && f.overlap(i, text, r, &own) {
			own.add(r, p.Name)
		}
		p.Ranges = append(p.Ranges, r)
	}
	if a := spec.Allocation; a != nil {
		f.when(a.Priority < 0, "spec.serviceAllocation.priority: must not be negative, is %d", a.Priority)
		f.selectors("spec.serviceAllocation.namespaceSelectors", a.NamespaceSelectors)
		f.selectors("spec.serviceAllocation.serviceSelectors", a.ServiceSelectors)
		p.Allocation = &Allocation{a.Priority, a.Namespaces, a.NamespaceSelectors, a.ServiceSelectors}
	}
	if len(f) == 0 {
		c.names[p.Name] = len(c.Pools)
		c.Pools = append(c.Pools, p)
		for _, r := range p.Ranges {
			c.ranges.add(r, p.Name)
		}
	}
	return errors.Join(f...)
}

// overlap checks spec.addresses[i] of a pool against the ranges of pools. It reports whether there is no fault.
func (f *faults) overlap(i int, text string, r Range, of *rangeSet[string]) bool {
	var named []string
	for o, pool := range of.overlapping(r) {
		if f.enough() {
			break
		}
		if !slices.Contains(named, pool) {
			f.when(true, "spec.addresses[%d]: %s overlaps %v-%v of pool %s", i, text, o.From, o.To, pool)
			named = append(named, pool)
		}
	}
	return named == nil
}

// ParseAddresses reads a comma separated list of addresses, as annotations have it.
func ParseAddresses(text string) ([]netip.Addr, error) {
	var out []netip.Addr
	for part := range strings.SplitSeq(text, ",") {
		a, err := netip.ParseAddr(strings.TrimSpace(part))
		if err != nil || a.Zone() != "" {
			return nil, fmt.Errorf("%q is no address", strings.TrimSpace(part))
		}
		out = append(out, a.Unmap())
	}
	return out, nil
}
