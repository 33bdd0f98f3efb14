package addresspool

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Advertisement is MetalLB's BGPAdvertisement, kept for who announces the addresses.
type Advertisement struct {
	Name                  string     `json:"-"`
	AggregationLength     *int       `json:"aggregationLength"`
	AggregationLengthV6   *int       `json:"aggregationLengthV6"`
	LocalPref             uint32     `json:"localPref"`
	Communities           []string   `json:"communities"` // values or names of Config.Communities
	IPAddressPools        []string   `json:"ipAddressPools"`
	IPAddressPoolSelector []Selector `json:"ipAddressPoolSelectors"`
	NodeSelectors         []Selector `json:"nodeSelectors"`
	Peers                 []string   `json:"peers"`
}

// Selects reports whether the advertisement is about the pool: without names and selectors, about
// all.
func (a *Advertisement) Selects(p *Pool) bool {
	if len(a.IPAddressPools)+len(a.IPAddressPoolSelector) == 0 {
		return true
	}
	return slices.Contains(a.IPAddressPools, p.Name) || anyMatches(a.IPAddressPoolSelector, p.Labels)
}

// Peer is MetalLB's BGPPeer.
type Peer struct {
	Name           string     `json:"-"`
	MyASN          uint32     `json:"myASN"`
	ASN            uint32     `json:"peerASN"`
	DynamicASN     string     `json:"dynamicASN"`
	Address        string     `json:"peerAddress"`
	Interface      string     `json:"interface"`
	SourceAddress  string     `json:"sourceAddress"`
	Port           uint16     `json:"peerPort"`
	HoldTime       string     `json:"holdTime"`
	KeepaliveTime  string     `json:"keepaliveTime"`
	ConnectTime    string     `json:"connectTime"`
	RouterID       string     `json:"routerID"`
	NodeSelectors  []Selector `json:"nodeSelectors"`
	Password       string     `json:"password"`
	PasswordSecret struct {
		Name      string `json:"name"`
		Namespace string `json:"namespace"`
	} `json:"passwordSecret"`
	BFDProfile             string `json:"bfdProfile"`
	EnableGracefulRestart  bool   `json:"enableGracefulRestart"`
	EBGPMultiHop           bool   `json:"ebgpMultiHop"`
	VRF                    string `json:"vrf"`
	DisableMP              bool   `json:"disableMP"`
	DualStackAddressFamily bool   `json:"dualStackAddressFamily"`
}

// BFDProfile is MetalLB's BFDProfile; times are in milliseconds.
type BFDProfile struct {
	Name             string `json:"-"`
	ReceiveInterval  *int   `json:"receiveInterval"`
	TransmitInterval *int   `json:"transmitInterval"`
	DetectMultiplier *int   `json:"detectMultiplier"`
	EchoInterval     *int   `json:"echoInterval"`
	EchoMode         bool   `json:"echoMode"`
	PassiveMode      bool   `json:"passiveMode"`
	MinimumTTL       *int   `json:"minimumTtl"`
}

func (c *Config) advertisement(h *header) error {
	a := Advertisement{Name: h.Metadata.Name}
	if err := h.spec(&a); err != nil {
		return err
	}
	for _, l := range []struct {
		field string
		value *int
		most  int
	}{{"aggregationLength", a.AggregationLength, 32}, {"aggregationLengthV6", a.AggregationLengthV6, 128}} {
		if l.value != nil && (*l.value < 1 || *l.value > l.most) {
			return fmt.Errorf("spec.%s: must be between 1 and %d, is %d", l.field, l.most, *l.value)
		}
	}
	if err := checkSelectors("spec.ipAddressPoolSelectors", a.IPAddressPoolSelector); err != nil {
		return err
	}
	if err := checkSelectors("spec.nodeSelectors", a.NodeSelectors); err != nil {
		return err
	}
	c.Advertisements = append(c.Advertisements, a)
	return nil
}

func (c *Config) peer(h *header) error {
	p := Peer{Name: h.Metadata.Name}
	if err := h.spec(&p); err != nil {
		return err
	}
	switch {
	case p.VRF != "":
		return errors.New("spec.vrf: sessions in a VRF are not supported")
	case p.DynamicASN != "":
		return errors.New("spec.dynamicASN: give the number in peerASN")
	case p.MyASN == 0:
		return errors.New("spec.myASN: must be set")
	case p.ASN == 0:
		return errors.New("spec.peerASN: must be set")
	case (p.Address == "") == (p.Interface == ""):
		return errors.New("spec.peerAddress: either this or interface must be set")
	case p.Password != "" && p.PasswordSecret.Name != "":
		return errors.New("spec.passwordSecret: not together with password")
	}
	for field, text := range map[string]string{"peerAddress": p.Address, "sourceAddress": p.SourceAddress, "routerID": p.RouterID} {
		if _, err := netip.ParseAddr(text); text != "" && err != nil {
			return fmt.Errorf("spec.%s: %q is no address", field, text)
		}
	}
	for field, text := range map[string]string{"holdTime": p.HoldTime, "keepaliveTime": p.KeepaliveTime, "connectTime": p.ConnectTime} {
		if _, err := time.ParseDuration(text); text != "" && err != nil {
			return fmt.Errorf("spec.%s: %q is no duration", field, text)
		}
	}
	if err := checkSelectors("spec.nodeSelectors", p.NodeSelectors); err != nil {
		return err
	}
	c.Peers = append(c.Peers, p)
	return nil
}

func (c *Config) bfdProfile(h *header) error {
	p := BFDProfile{Name: h.Metadata.Name}
	if err := h.spec(&p); err != nil {
		return err
	}
	switch {
	case p.EchoMode:
		return errors.New("spec.echoMode: not supported")
	case p.PassiveMode:
		return errors.New("spec.passiveMode: not supported")
	}
	for _, l := range []struct {
		field       string
		value       *int
		least, most int
	}{{"receiveInterval", p.ReceiveInterval, 10, 60000}, {"transmitInterval", p.TransmitInterval, 10, 60000}, {"detectMultiplier", p.DetectMultiplier, 2, 255}} {
		if l.value != nil && (*l.value < l.least || *l.value > l.most) {
			return fmt.Errorf("spec.%s: must be between %d and %d, is %d", l.field, l.least, l.most, *l.value)
		}
	}
	c.BFDProfiles = append(c.BFDProfiles, p)
	return nil
}

func (c *Config) community(h *header) error {
	var spec struct {
		Communities []struct{ Name, Value string } `json:"communities"`
	}
	if err := h.spec(&spec); err != nil {
		return err
	}
	for i, x := range spec.Communities {
		if !isCommunity(x.Value) {
			return fmt.Errorf("spec.communities[%d].value: %q is neither 65535:65535 nor large:1:2:3", i, x.Value)
		}
		if _, twice := c.Communities[x.Name]; twice {
			return fmt.Errorf("spec.communities[%d].name: %s is there twice", i, x.Name)
		}
		c.Communities[x.Name] = x.Value
	}
	return nil
}

// isCommunity reports whether the text is a standard community (RFC 1997), or a large
// community (RFC 8092) as MetalLB writes it.
func isCommunity(text string) bool {
	size, numbers := 16, 2
	parts := strings.Split(text, ":")
	if parts[0] == "large" {
		size, numbers, parts = 32, 3, parts[1:]
	}
	if len(parts) != numbers {
		return false
	}
	return !slices.ContainsFunc(parts, func(s string) bool {
		_, err := strconv.ParseUint(s, 10, size)
		return err != nil
	})
}

// checkReferences warns of names that lead nowhere. A pool may come later, so the objects are in
// use.
func (c *Config) checkReferences(all []*header) {
	find := func(kind, name string) *header {
		i := slices.IndexFunc(all, func(h *header) bool { return h.Kind == kind && h.Metadata.Name == name })
		return all[i]
	}
	pools := func(name string) bool {
		return slices.ContainsFunc(c.Pools, func(p Pool) bool { return p.Name == name })
	}
	for _, a := range c.Advertisements {
		h := find("BGPAdvertisement", a.Name)
		for i, name := range a.IPAddressPools {
			if !pools(name) {
				c.Faults = append(c.Faults, h.fault(fmt.Errorf("spec.ipAddressPools[%d]: there is no pool %s", i, name), true))
			}
		}
		for i, name := range a.Communities {
			if _, ok := c.Communities[name]; !ok && !isCommunity(name) {
				c.Faults = append(c.Faults, h.fault(fmt.Errorf("spec.communities[%d]: %s is neither a community nor the name of one", i, name), true))
			}
		}
	}
	for _, p := range c.Peers {
		known := slices.ContainsFunc(c.BFDProfiles, func(b BFDProfile) bool { return b.Name == p.BFDProfile })
		if p.BFDProfile != "" && !known {
			c.Faults = append(c.Faults, find("BGPPeer", p.Name).fault(fmt.Errorf("spec.bfdProfile: there is no profile %s", p.BFDProfile), true))
		}
	}
}
