package config

import (
	"cmp"
	"encoding/base64"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weirlb/weir/lb/announce"
)

// Values of Announce.Speaker.
const (
	AnnounceOff = "off"
	AnnounceBGP = "bgp"
	// AnnounceKernel leaves the announcement to a routing daemon beside Weir.
	AnnounceKernel = "kernel"
)

// Announce is the announcement of load balancer addresses and external IPs to routers. An
// address is announced exactly while this node serves it.
type Announce struct {
	// Speaker is off, bgp or kernel. With bgp Weir has BGP sessions of its own with routers. With
	// kernel it keeps routes in kernelTable, which a routing daemon on this node (FRR, BIRD)
	// redistributes: sessions and attributes are that daemon's.
	Speaker string `json:"speaker"`
	// ASN is the number of the autonomous system of this node.
	ASN int `json:"asn"`
	// RouterID is the BGP identifier, an IPv4 address. With "" it is the node's first IPv4
	// address. Without such an address it must be given.
	RouterID string `json:"routerID"`
	// KernelTable is the number of the routing table of speaker kernel. No other program should
	// use it together with kernelProtocol.
	KernelTable int `json:"kernelTable"`
	// KernelProtocol is the protocol number of the routes of speaker kernel.
	KernelProtocol int `json:"kernelProtocol"`
	// Objects are files and directories with objects of MetalLB, or of Weir with the same
	// fields: BGPPeers are further routers, and the pools of BGPAdvertisements further prefixes.
	// See deploy/POOLS.md. They are read at the start and at a reload; with a fault that the
	// objects in use have not, a reload changes neither routes nor sessions.
	Objects []string `json:"objects"`
	// ObjectNamespaces are those whose objects in the API server count beside objects, "*" for
	// all: changes take effect at once. It needs discovery.kubernetes. Authors of objects there
	// decide which routers are told which routes.
	ObjectNamespaces []string `json:"objectNamespaces"`
	// ObjectSecrets are the names of Secrets of type kubernetes.io/basic-auth in
	// objectNamespaces that the passwordSecret of BGPPeers may name; no other Secret is read.
	ObjectSecrets []string `json:"objectSecrets"`
	// Peers are the routers.
	Peers []Peer `json:"peers"`
	// Prefixes are those whose addresses may be announced; others are refused. Without them
	// every author of a Service status could attract traffic of the site.
	Prefixes []string `json:"prefixes"`
	// MaxAddresses is the number of addresses that may be announced.
	MaxAddresses int `json:"maxAddresses"`
	// Communities are those of every route (RFC 1997), such as 64512:100.
	Communities []string `json:"communities"`
	// LargeCommunities are those of every route (RFC 8092), such as 64512:1:2.
	LargeCommunities []string `json:"largeCommunities"`
	// MED is the multi-exit discriminator of every route; absent: none.
	MED *int `json:"med,omitempty"`
	// LocalPref is the local preference of every route to peers of the same autonomous system;
	// absent: 100.
	LocalPref *int `json:"localPref,omitempty"`
	// Prepend is how often the path has announce.asn once more. It is 0 with a peer of the same
	// autonomous system (iBGP), which takes a path with its own number for a loop. It is not
	// done while a BGPPeer of objects is such a peer.
	Prepend int `json:"prepend"`
	// AggregateIPv4 is the length of announced IPv4 prefixes. A prefix is announced while any
	// address in it is served here, so the others in it must be served too: not those of Services
	// with Local policy, which nodes without an endpoint lose, as weir check and weir status
	// --problems say. It is at least the length of those in prefixes. 0 is the address alone.
	AggregateIPv4 int `json:"aggregateIPv4"`
	// AggregateIPv6 is the same of IPv6.
	AggregateIPv6 int `json:"aggregateIPv6"`
	// SettleSeconds is how long an address must be served without interruption before it is
	// announced. It is doubled up to 60 s for an address that comes and goes.
	SettleSeconds int `json:"settleSeconds"`
	// EmptySeconds is how long an address stays announced that has no endpoint on any node.
	// Clients are then refused by this node, in place of a change of routes per rollout.
	EmptySeconds int `json:"emptySeconds"`
	// HonorCordon withdraws all addresses while the Node is unschedulable (kubectl cordon). It
	// needs discovery.kubernetes. Nodes are cordoned for other reasons than a maintenance of the
	// network, so it is off unless it is asked for.
	HonorCordon bool `json:"honorCordon"`
	// LingerMilliseconds is how long Weir goes on to serve an address as before that it has
	// withdrawn because a Service or the last endpoint for this node is gone: routers need this
	// time to follow. 0 ends it at once.
	LingerMilliseconds int `json:"lingerMilliseconds"`
	// DrainSeconds is how long Weir goes on to serve packets after it has withdrawn the
	// addresses, at a stop and for weir drain self --wait.
	DrainSeconds int `json:"drainSeconds"`
	// ResetAfterSeconds is how long the packets of a TCP connection or SCTP association that
	// this node has no entry for get no answer, to load balancer addresses and external IPs.
	// Then it is reset. The connection may be another node's, and go on there when routes
	// change back. 0 resets it at once.
	ResetAfterSeconds int `json:"resetAfterSeconds"`
	// L2 announces addresses on links by ARP and neighbor discovery, without a router. It may be used
	// beside any speaker.
	L2 L2 `json:"l2"`
}

// L2 is the announcement on links. One of the nodes on a link that announce an address there owns
// it, and answers.
type L2 struct {
	// Interfaces are those on which addresses in their subnets are announced; empty: none. Nodes on
	// such a link find each other by multicast, and use UDP and TCP port 7949 there. Without
	// prefixes, objects and a speaker, all addresses of these subnets may be announced.
	Interfaces []string `json:"interfaces"`
	// KeyFile is the path of a file with 16, 24 or 32 bytes in base64 that all nodes on the links
	// have: they encrypt and authenticate what they tell each other (AES-GCM). With "" every host
	// on the link can take part. It is read at the start.
	KeyFile string `json:"keyFile"`
	// Preempt has this node take addresses back from others as soon as it can serve them. Otherwise
	// they stay until their owner gives them up, or weir drain self --undo on this node.
	Preempt bool `json:"preempt"`
}

// Key reads the key file; nil without a file.
func (l *L2) Key() ([]byte, error) {
	if l.KeyFile == "" {
		return nil, nil
	}
	b, err := os.ReadFile(l.KeyFile)
	if err != nil {
		return nil, err
	}
	key, err := base64.StdEncoding.DecodeString(strings.TrimSpace(string(b)))
	if err != nil || !slices.Contains([]int{16, 24, 32}, len(key)) {
		return nil, fmt.Errorf("%s: must have 16, 24 or 32 bytes in base64", l.KeyFile)
	}
	return key, nil
}

// On reports whether anything is announced.
func (a *Announce) On() bool { return a.Speaker != AnnounceOff || len(a.L2.Interfaces) > 0 }

// anyPrefix reports whether the subnets of L2.Interfaces alone bound the addresses.
func (a *Announce) anyPrefix() bool {
	return a.Speaker == AnnounceOff && len(a.L2.Interfaces) > 0 && len(a.Prefixes) == 0 && !a.HasObjects()
}

// Peer is a router.
type Peer struct {
	// Address is the address of the router. The session has the routes of this address's family.
	Address string `json:"address"`
	// Interface, in place of address, makes an unnumbered session with the only router on a
	// link, over link-local addresses. It has the routes of both families (RFC 8950).
	Interface string `json:"interface"`
	// ASN is the number of the router's autonomous system.
	ASN int `json:"asn"`
	// Port is the TCP port; 0 is 179.
	Port int `json:"port"`
	// PasswordFile is the path of a file with the key of TCP MD5 signatures (RFC 2385). It is
	// read at the start.
	PasswordFile string `json:"passwordFile"`
	// SourceAddress is the own address of the session; "" is the kernel's choice.
	SourceAddress string `json:"sourceAddress"`
	// HoldSeconds is the time without a message after which the session ends; 0 is 9. The lower
	// value of both sides holds.
	HoldSeconds int `json:"holdSeconds"`
	// KeepaliveSeconds is the time between messages; 0 is a third of holdSeconds.
	KeepaliveSeconds int `json:"keepaliveSeconds"`
	// MultihopTTL is the number of hops to a router of another autonomous system that is not on
	// a link of this node; 0 is a router on a link.
	MultihopTTL int `json:"multihopTTL"`
	// BFD ends the session when nothing has come from the router for a fraction of a second
	// (RFC 5880, RFC 5881). The router must have it too. Absent: the hold time alone decides. It
	// is for routers on a link with address, without sourceAddress, and uses UDP port 3784.
	BFD *BFD `json:"bfd,omitempty"`
	// GracefulRestart has the router keep the routes when the session ends without a notification,
	// as by a kill or a restart (RFC 4724). Absent: the router withdraws, and other nodes get
	// the packets. It is for addresses that no other node announces. It excludes bfd.
	GracefulRestart *GracefulRestart `json:"gracefulRestart,omitempty"`
}

// GracefulRestart is that of BGP.
type GracefulRestart struct {
	// Seconds is how long the router keeps the routes without a session; 0 is 30. It must be more
	// than twice settleSeconds and 2: a session begins after half of the time at the latest.
	Seconds int `json:"seconds"`
}

// defaultRestart and longestRestart are the default and the bound of GracefulRestart.Seconds, which
// has 12 bits.
const (
	defaultRestart = 30
	longestRestart = 4095
)

// Time is the time of Seconds; 0 without graceful restart.
func (g *GracefulRestart) Time() time.Duration {
	if g == nil {
		return 0
	}
	return time.Duration(cmp.Or(g.Seconds, defaultRestart)) * time.Second
}

// BFD is bidirectional forwarding detection.
type BFD struct {
	// IntervalMilliseconds is the time between packets, in both directions; 0 is 300. It must not
	// be less than the router accepts. The greater value of both sides holds for packets of the
	// router.
	IntervalMilliseconds int `json:"intervalMilliseconds"`
	// Multiplier is the number of lost packets after which the session ends; 0 is 3.
	Multiplier int `json:"multiplier"`
}

// Defaults and bounds of BFD. With less than the shortest interval a busy machine would end
// sessions that are alive.
const (
	defaultBFDInterval   = 300
	shortestBFDInterval  = 50
	defaultBFDMultiplier = 3
)

// Interval is the time of IntervalMilliseconds.
func (b *BFD) Interval() time.Duration {
	return time.Duration(cmp.Or(b.IntervalMilliseconds, defaultBFDInterval)) * time.Millisecond
}

// Lost is the number of Multiplier.
func (b *BFD) Lost() uint8 { return uint8(cmp.Or(b.Multiplier, defaultBFDMultiplier)) }

// defaultHold is the default of Peer.HoldSeconds.
const defaultHold = 9

// Hold and Keepalive are the times of the session.
func (p *Peer) Hold() time.Duration {
	if p.HoldSeconds == 0 {
		return defaultHold * time.Second
	}
	return time.Duration(p.HoldSeconds) * time.Second
}

// Keepalive is the time between messages.
func (p *Peer) Keepalive() time.Duration {
	if p.KeepaliveSeconds == 0 {
		return max(p.Hold()/3, time.Second).Truncate(time.Second)
	}
	return time.Duration(p.KeepaliveSeconds) * time.Second
}

// Password reads the password file; "" without a file.
func (p *Peer) Password() (string, error) {
	if p.PasswordFile == "" {
		return "", nil
	}
	b, err := os.ReadFile(p.PasswordFile)
	if err != nil {
		return "", err
	}
	password := strings.TrimSpace(string(b))
	if n := len(password); n == 0 || n > 80 {
		return "", fmt.Errorf("%s: a password has 1 to 80 characters, this has %d", p.PasswordFile, n)
	}
	return password, nil
}

// HasObjects reports whether objects of MetalLB or Weir are read.
func (a *Announce) HasObjects() bool { return len(a.Objects)+len(a.ObjectNamespaces) > 0 }

// WatchedNamespaces are those whose objects are watched; "" is all.
func (a *Announce) WatchedNamespaces() []string {
	switch {
	case a.Speaker != AnnounceBGP && (a.Speaker != AnnounceOff || len(a.L2.Interfaces) == 0):
		return nil
	case slices.Contains(a.ObjectNamespaces, "*"):
		return []string{""}
	}
	return a.ObjectNamespaces
}

// Linger is the time of DrainSeconds, 0 where nothing is announced.
func (a *Announce) Linger() time.Duration {
	if !a.On() {
		return 0
	}
	return time.Duration(a.DrainSeconds) * time.Second
}

// AfterWithdrawal is the time of LingerMilliseconds.
func (a *Announce) AfterWithdrawal() time.Duration {
	return time.Duration(a.LingerMilliseconds) * time.Millisecond
}

// Silence is the time of ResetAfterSeconds, 0 where nothing is announced.
func (a *Announce) Silence() time.Duration {
	if !a.On() {
		return 0
	}
	return time.Duration(a.ResetAfterSeconds) * time.Second
}

// Settings are those of the rule. Preconditions: the configuration is valid.
func (a *Announce) Settings() announce.Settings {
	s := announce.Settings{
		MaxAddresses: a.MaxAddresses, Settle: time.Duration(a.SettleSeconds) * time.Second,
		EmptyFor:   time.Duration(a.EmptySeconds) * time.Second,
		Aggregate4: a.AggregateIPv4, Aggregate6: a.AggregateIPv6,
		Attributes: announce.Attributes{Prepend: uint8(a.Prepend), MED: metric(a.MED), LocalPref: metric(a.LocalPref)},
	}
	for _, p := range a.Prefixes {
		if prefix, err := netip.ParsePrefix(p); err == nil {
			s.Allow = append(s.Allow, prefix)
		}
	}
	if a.anyPrefix() {
		s.Allow = []netip.Prefix{netip.PrefixFrom(netip.IPv4Unspecified(), 0), netip.PrefixFrom(netip.IPv6Unspecified(), 0)}
	}
	for _, c := range a.Communities {
		if n, ok := community(c, 2, 16); ok {
			s.Attributes.Communities = append(s.Attributes.Communities, n[0]<<16|n[1])
		}
	}
	for _, c := range a.LargeCommunities {
		if n, ok := community(c, 3, 32); ok {
			s.Attributes.LargeCommunities = append(s.Attributes.LargeCommunities, [3]uint32(n))
		}
	}
	return s
}

func metric(n *int) *uint32 {
	if n == nil {
		return nil
	}
	m := uint32(*n)
	return &m
}

// community takes a community of a number of parts apart.
func community(s string, parts, bits int) (out []uint32, ok bool) {
	fields := strings.Split(s, ":")
	for _, f := range fields {
		n, err := strconv.ParseUint(f, 10, bits)
		if err != nil {
			return nil, false
		}
		out = append(out, uint32(n))
	}
	return out, len(out) == parts
}
