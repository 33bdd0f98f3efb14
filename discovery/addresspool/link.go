package addresspool

import (
	"errors"
	"net/netip"
	"slices"
)

// LinkAdvertisement is MetalLB's L2Advertisement.
type LinkAdvertisement struct {
	Name                  string `json:"-"`
	header                *header
	IPAddressPools        []string   `json:"ipAddressPools"`
	IPAddressPoolSelector []Selector `json:"ipAddressPoolSelectors"`
	NodeSelectors         []Selector `json:"nodeSelectors"`
	Interfaces            []string   `json:"interfaces"`
	ServiceSelectors      []Selector `json:"serviceSelectors"`
}

// Linked are addresses that a node announces by ARP and NDP.
type Linked struct {
	Name       string
	Prefixes   []netip.Prefix
	Interfaces []string // nil: all that the node announces on
	// Services are those whose addresses these are; without a selector all.
	Services []Selector
}

func (c *Config) linkAdvertisement(h *header) error {
	a := LinkAdvertisement{Name: h.Metadata.Name, header: h}
	if err := h.spec(&a); err != nil {
		return err
	}
	var f faults
	f.selectors("spec.serviceSelectors", a.ServiceSelectors)
	f.selectors("spec.ipAddressPoolSelectors", a.IPAddressPoolSelector)
	f.selectors("spec.nodeSelectors", a.NodeSelectors)
	if len(f) == 0 {
		c.LinkAdvertisements = append(c.LinkAdvertisements, a)
	}
	return errors.Join(f...)
}

// ErrNoLinks is the fault of an L2Advertisement on a node that is on no LAN for Weir. Its file may be
// that of a cluster.
var ErrNoLinks = errors.New("kind: this node announces nothing by ARP and NDP: announce.l2.interfaces is empty")

// link adds the addresses of an L2Advertisement.
func (o *announcing) link(a *LinkAdvertisement) error {
	if !o.node.Links {
		return ErrNoLinks
	}
	pools, err := o.selections.of(a.IPAddressPools, a.IPAddressPoolSelector)
	if err != nil {
		return err
	}
	x := Linked{Name: a.Name, Prefixes: pools.prefixes, Interfaces: slices.Clone(a.Interfaces), Services: a.ServiceSelectors}
	o.Links = append(o.Links, x)
	return nil
}
