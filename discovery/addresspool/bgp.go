package addresspool

import (
	"errors"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Advertisement is MetalLB's BGPAdvertisement.
type Advertisement struct {
	Name                  string `json:"-"`
	header                *header
	AggregationLength     *int       `json:"aggregationLength"`
	AggregationLengthV6   *int       `json:"aggregationLengthV6"`
	LocalPref             uint32     `json:"localPref"`
	Communities           []string   `json:"communities"` // values or names of Config.Communities
	IPAddressPools        []string   `json:"ipAddressPools"`
	IPAddressPoolSelector []Selector `json:"ipAddressPoolSelectors"`
	NodeSelectors         []Selector `json:"nodeSelectors"`
	Peers                 []string   `json:"peers"`
	ServiceSelectors      []Selector `json:"serviceSelectors"`
}

// Peer is MetalLB's BGPPeer.
type Peer struct {
	Name   string `json:"-"`
	header *header
	MyASN  uint32 `json:"myASN"`
	// ASN is 0 for any number but MyASN (external).
	ASN                    uint32          `json:"peerASN"`
	LocalASN               uint32          `json:"localASN"`
	DynamicASN             string          `json:"dynamicASN"`
	Address                string          `json:"peerAddress"`
	Interface              string          `json:"interface"`
	SourceAddress          string          `json:"sourceAddress"`
	Port                   uint16          `json:"peerPort"`
	HoldTime               string          `json:"holdTime"`
	KeepaliveTime          string          `json:"keepaliveTime"`
	ConnectTime            string          `json:"connectTime"`
	RouterID               string          `json:"routerID"`
	NodeSelectors          []Selector      `json:"nodeSelectors"`
	Password               string          `json:"password"`
	PasswordSecret         SecretReference `json:"passwordSecret"`
	BFDProfile             string          `json:"bfdProfile"`
	EnableGracefulRestart  bool            `json:"enableGracefulRestart"`
	EBGPMultiHop           bool            `json:"ebgpMultiHop"`
	VRF                    string          `json:"vrf"`
	DisableMP              bool            `json:"disableMP"`
	DualStackAddressFamily bool            `json:"dualStackAddressFamily"`
	// Key is the password of PasswordSecret, "" for none. It is of Announcement alone.
	Key string `json:"-"`
	// Hold and Keepalive are HoldTime and KeepaliveTime; 0: the default.
	Hold, Keepalive time.Duration `json:"-"`
	// BFD is the profile of BFDProfile; nil: none.
	BFD *BFDProfile `json:"-"`
}

// Fault is a Fault of the peer, which is out of service.
func (p *Peer) Fault(err error) *Fault { return p.header.fault(err, false) }

// Values of Peer.DynamicASN.
const (
	internalASN = "internal"
	externalASN = "external"
)

// SecretReference names a Secret.
type SecretReference struct {
	Name      string `json:"name"`
	Namespace string `json:"namespace"`
}

// supported complains of fields that a node would not do as they say. DisableMP is done always: a session has
// the routes of its own family.
func (p *Peer) supported(f *faults) {
	f.when(p.VRF != "", "spec.vrf: sessions in a VRF are not supported")
	f.when(p.Password != "", "spec.password: whoever may read the object would have it; use passwordSecret, or announce.peers with passwordFile")
	f.when(p.BFDProfile != "" && p.EBGPMultiHop, "spec.bfdProfile: BFD is for a router on a link; use it without ebgpMultiHop")
	f.when(p.BFDProfile != "" && p.Interface != "", "spec.bfdProfile: BFD needs peerAddress in place of interface")
	f.when(p.BFDProfile != "" && p.SourceAddress != "", "spec.bfdProfile: BFD packets have the kernel's choice of address; use it without sourceAddress")
	f.when(p.BFDProfile != "" && p.EnableGracefulRestart,
		"spec.enableGracefulRestart: the router would keep the routes to a node that BFD has found dead; use it without bfdProfile")
	f.when(p.ConnectTime != "", "spec.connectTime: not supported; connections are tried every second")
	f.when(p.DualStackAddressFamily, "spec.dualStackAddressFamily: not supported; a session has the routes of its own family")
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
	MinimumTTL       *int   `json:"minimumTtl"` // across routers, where there is no BFD
}

// defaultBFDInterval is the default of both intervals.
const defaultBFDInterval = 300

// Receive is the time of ReceiveInterval.
func (p *BFDProfile) Receive() time.Duration { return milliseconds(p.ReceiveInterval) }

// Transmit is the time of TransmitInterval.
func (p *BFDProfile) Transmit() time.Duration { return milliseconds(p.TransmitInterval) }

func milliseconds(n *int) time.Duration {
	if n == nil {
		return defaultBFDInterval * time.Millisecond
	}
	return time.Duration(*n) * time.Millisecond
}

// Multiplier is the number of DetectMultiplier.
func (p *BFDProfile) Multiplier() uint8 {
	if p.DetectMultiplier == nil {
		return 3
	}
	return uint8(*p.DetectMultiplier)
}

func (c *Config) advertisement(h *header) error {
	a := Advertisement{Name: h.Metadata.Name, header: h}
	if err := h.spec(&a); err != nil {
		return err
	}
	var f faults
	for _, l := range []struct {
		field string
		value *int
		most  int
	}{{"aggregationLength", a.AggregationLength, 32}, {"aggregationLengthV6", a.AggregationLengthV6, 128}} {
		if l.value != nil && (*l.value < 1 || *l.value > l.most) {
			f.when(true, "spec.%s: must be between 1 and %d, is %d", l.field, l.most, *l.value)
			continue
		}
		f.when(len(a.ServiceSelectors) > 0 && l.value != nil && *l.value < l.most,
			"spec.%s: must be %d with serviceSelectors: a prefix has addresses of other Services", l.field, l.most)
	}
	named := map[string]bool{}
	for i, name := range a.Peers {
		f.when(named[name], "spec.peers[%d]: %s is there twice", i, name)
		named[name] = true
	}
	f.selectors("spec.serviceSelectors", a.ServiceSelectors)
	f.selectors("spec.ipAddressPoolSelectors", a.IPAddressPoolSelector)
	f.selectors("spec.nodeSelectors", a.NodeSelectors)
	if len(f) == 0 {
		c.Advertisements = append(c.Advertisements, a)
	}
	return errors.Join(f...)
}

func (c *Config) peer(h *header) error {
	p := Peer{Name: h.Metadata.Name, header: h}
	if err := h.spec(&p); err != nil {
		return err
	}
	var f faults
	p.supported(&f)
	p.autonomousSystems(&f)
	f.when((p.Address == "") == (p.Interface == ""), "spec.peerAddress: either this or interface must be set")
	for _, a := range []struct{ field, text string }{{"peerAddress", p.Address}, {"sourceAddress", p.SourceAddress}, {"routerID", p.RouterID}} {
		_, err := netip.ParseAddr(a.text)
		f.when(a.text != "" && err != nil, "spec.%s: %q is no address", a.field, a.text)
	}
	for _, d := range []struct {
		field, text string
		to          *time.Duration
	}{{"holdTime", p.HoldTime, &p.Hold}, {"keepaliveTime", p.KeepaliveTime, &p.Keepalive}} {
		if d.text == "" {
			continue
		}
		var err error
		if *d.to, err = time.ParseDuration(d.text); err != nil {
			f.when(true, "spec.%s: %q is no duration", d.field, d.text)
			continue
		}
		f.when(d.to == &p.Hold && (p.Hold < 3*time.Second || p.Hold > 65535*time.Second), "spec.holdTime: must be 3s to 65535s (RFC 4271), is %s", p.HoldTime)
	}
	f.selectors("spec.nodeSelectors", p.NodeSelectors)
	if len(f) == 0 {
		c.Peers = append(c.Peers, p)
	}
	return errors.Join(f...)
}

// autonomousSystems checks the numbers of the router and the node, and sets that of a router in the node's own.
func (p *Peer) autonomousSystems(f *faults) {
	f.when(p.MyASN == 0, "spec.myASN: must be set")
	f.when(p.DynamicASN != "" && p.DynamicASN != internalASN && p.DynamicASN != externalASN,
		"spec.dynamicASN: must be %s or %s, is %q", internalASN, externalASN, p.DynamicASN)
	f.when((p.ASN == 0) == (p.DynamicASN == ""), "spec.peerASN: either this or dynamicASN must be set")
	if len(*f) > 0 {
		return
	}
	if p.DynamicASN == internalASN {
		p.ASN = p.MyASN
	}
	f.when(p.LocalASN != 0 && (p.MyASN == p.ASN || p.LocalASN == p.ASN), "spec.localASN: is for routers of another autonomous system")
	f.when(p.EBGPMultiHop && p.MyASN == p.ASN, "spec.ebgpMultiHop: is for routers of another autonomous system")
}

func (c *Config) bfdProfile(h *header) error {
	p := BFDProfile{Name: h.Metadata.Name}
	if err := h.spec(&p); err != nil {
		return err
	}
	var f faults
	f.when(p.EchoMode, "spec.echoMode: not supported")
	f.when(p.PassiveMode, "spec.passiveMode: not supported")
	for _, l := range []struct {
		field       string
		value       *int
		least, most int
	}{{"receiveInterval", p.ReceiveInterval, 50, 60000}, {"transmitInterval", p.TransmitInterval, 50, 60000}, {"detectMultiplier", p.DetectMultiplier, 2, 255}} {
		if l.value != nil {
			f.when(*l.value < l.least || *l.value > l.most, "spec.%s: must be between %d and %d, is %d", l.field, l.least, l.most, *l.value)
		}
	}
	if len(f) == 0 {
		c.BFDProfiles = append(c.BFDProfiles, p)
	}
	return errors.Join(f...)
}

// CommunitySpec is the spec of MetalLB's Community.
type CommunitySpec struct {
	Communities []CommunityAlias `json:"communities"`
}

// CommunityAlias is a name for a community.
type CommunityAlias struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

func (c *Config) community(h *header) error {
	var spec CommunitySpec
	if err := h.spec(&spec); err != nil {
		return err
	}
	var f faults
	for i, x := range spec.Communities {
		_, twice := c.Communities[x.Name]
		switch {
		case !isCommunity(x.Value):
			f.when(true, "spec.communities[%d].value: %q is neither 65535:65535 nor large:1:2:3", i, x.Value)
		case twice:
			f.when(true, "spec.communities[%d].name: %s is there twice", i, x.Name)
		default:
			c.Communities[x.Name] = x.Value
		}
	}
	return errors.Join(f...)
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
