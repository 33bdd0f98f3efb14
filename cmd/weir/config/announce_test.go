package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// announcing is a valid configuration that announces.
func announcing(t *testing.T) *Configuration {
	t.Helper()
	c := valid(t)
	c.Announce = Default().Announce
	c.Announce.Speaker, c.Announce.ASN = AnnounceBGP, 64512
	c.Announce.Peers = []Peer{{Address: "10.0.0.1", ASN: 64500}, {Interface: "eth1", ASN: 64500}}
	c.Announce.Prefixes = []string{"203.0.113.0/24"}
	return c
}

// bfd gives the first router BFD, and edits it.
func bfd(b BFD, edits ...func(*Peer)) func(*Announce) {
	return func(a *Announce) {
		a.Peers[0].BFD = &b
		for _, edit := range edits {
			edit(&a.Peers[0])
		}
	}
}

func wideIPv6(a *Announce) {
	a.Prefixes, a.AggregateIPv4, a.AggregateIPv6 = []string{"203.0.113.0/24", "2001:db8::/64"}, 24, 32
}

func TestAnnounceIsValidated(t *testing.T) {
	good := announcing(t)
	bfd(BFD{})(&good.Announce)
	if err := good.Validate().Err(); err != nil {
		t.Fatal(err)
	}
	negative := -1
	for name, c := range map[string]struct {
		edit       func(*Announce)
		path, want string
	}{
		"speaker":          {func(a *Announce) { a.Speaker = "ospf" }, "announce.speaker", `must be off, bgp or kernel, is "ospf"`},
		"no number":        {func(a *Announce) { a.ASN = 0 }, "announce.asn", "must be 1 to 4294967294, is 0"},
		"router ID":        {func(a *Announce) { a.RouterID = "::1" }, "announce.routerID", "not an IPv4 address"},
		"no router":        {func(a *Announce) { a.Peers = nil }, "announce.peers", "at least one router"},
		"no prefix":        {func(a *Announce) { a.Prefixes = nil }, "announce.prefixes", "must have the prefixes"},
		"host bits":        {func(a *Announce) { a.Prefixes[0] = "203.0.113.1/24" }, "announce.prefixes[0]", "203.0.113.0/24 is meant?"},
		"community":        {func(a *Announce) { a.Communities = []string{"64512:70000"} }, "announce.communities[0]", "not a community"},
		"large community":  {func(a *Announce) { a.LargeCommunities = []string{"1:2"} }, "announce.largeCommunities[0]", "not a large community"},
		"metric":           {func(a *Announce) { a.MED = &negative }, "announce.med", "must be 0 to"},
		"prepend":          {func(a *Announce) { a.Prepend = 17 }, "announce.prepend", "must be 0 to 16"},
		"aggregate":        {func(a *Announce) { a.AggregateIPv4 = 33 }, "announce.aggregateIPv4", "must be 0 to 32"},
		"wide aggregate":   {func(a *Announce) { a.AggregateIPv4 = 8 }, "announce.aggregateIPv4", "at least 24: 203.0.0.0/8 is not in announce.prefixes"},
		"wide, IPv6":       {wideIPv6, "announce.aggregateIPv6", "at least 64: 2001:db8::/32 is not in announce.prefixes"},
		"reset":            {func(a *Announce) { a.ResetAfterSeconds = -1 }, "announce.resetAfterSeconds", "must be 0 to 3600"},
		"objects":          {func(a *Announce) { a.Objects = []string{"pools.yaml"} }, "announce.objects[0]", "absolute path"},
		"no API server":    {func(a *Announce) { a.ObjectNamespaces = []string{"metallb-system"} }, "announce.objectNamespaces", "needs discovery.kubernetes"},
		"a namespace":      {func(a *Announce) { a.ObjectNamespaces = []string{"metallb-system", "a/b"} }, "announce.objectNamespaces[1]", `"a/b" is no namespace`},
		"all and more":     {func(a *Announce) { a.ObjectNamespaces = []string{"*", "a"} }, "announce.objectNamespaces", "must be alone"},
		"secrets of all":   {func(a *Announce) { a.ObjectNamespaces, a.ObjectSecrets = []string{"*"}, []string{"key"} }, "announce.objectSecrets", "names of namespaces"},
		"a secret":         {func(a *Announce) { a.ObjectNamespaces, a.ObjectSecrets = []string{"a"}, []string{"KEY"} }, "announce.objectSecrets[0]", "no name of a Secret"},
		"kernel's objects": {func(a *Announce) { a.Speaker, a.ObjectNamespaces = AnnounceKernel, []string{"a"} }, "announce.objectNamespaces", "is not for speaker kernel"},
		"kernel's peers":   {func(a *Announce) { a.Speaker = AnnounceKernel }, "announce.peers", "is not for speaker kernel"},
		"main table":       {func(a *Announce) { a.Speaker, a.KernelTable = AnnounceKernel, 254 }, "announce.kernelTable", "a table of another use"},
		"kernel protocol":  {func(a *Announce) { a.Speaker, a.KernelProtocol = AnnounceKernel, 2 }, "announce.kernelProtocol", "must be 5 to 255"},
		"settle":           {func(a *Announce) { a.SettleSeconds = 61 }, "announce.settleSeconds", "must be 0 to 60"},
		"nobody":           {func(a *Announce) { a.Peers[0].Address = "" }, "announce.peers[0]", "must have address or interface"},
		"both":             {func(a *Announce) { a.Peers[0].Interface = "eth0" }, "announce.peers[0]", "give one"},
		"link-local":       {func(a *Announce) { a.Peers[0].Address = "fe80::1%eth0" }, "announce.peers[0].address", "give interface"},
		"twice":            {func(a *Announce) { a.Peers[1] = a.Peers[0] }, "announce.peers[1]", "10.0.0.1 is listed twice"},
		"its number":       {func(a *Announce) { a.Peers[0].ASN = 0 }, "announce.peers[0].asn", "must be 1 to"},
		"password":         {func(a *Announce) { a.Peers[0].PasswordFile = "key" }, "announce.peers[0].passwordFile", "absolute path"},
		"short hold":       {func(a *Announce) { a.Peers[0].HoldSeconds = 2 }, "announce.peers[0].holdSeconds", "RFC 4271"},
		"long keepalive":   {func(a *Announce) { a.Peers[0].KeepaliveSeconds = 9 }, "announce.peers[0].keepaliveSeconds", "less than holdSeconds"},
		"far BFD":          {bfd(BFD{}, func(p *Peer) { p.MultihopTTL = 2 }), "announce.peers[0].bfd", "cannot be used with multihopTTL"},
		"unnumbered BFD":   {bfd(BFD{}, func(p *Peer) { p.Address, p.Interface = "", "eth0" }), "announce.peers[0].bfd", "cannot be used with interface"},
		"source of BFD":    {bfd(BFD{}, func(p *Peer) { p.SourceAddress = "10.0.0.9" }), "announce.peers[0].bfd", "cannot be used with sourceAddress"},
		"fast BFD":         {bfd(BFD{IntervalMilliseconds: 49}), "announce.peers[0].bfd.intervalMilliseconds", "must be 0 (300) or 50 to 60000, is 49"},
		"BFD and restart":  {bfd(BFD{}, func(p *Peer) { p.GracefulRestart = &GracefulRestart{} }), "announce.peers[0].gracefulRestart", "cannot be used with bfd"},
		"cordon":           {func(a *Announce) { a.HonorCordon = true }, "announce.honorCordon", "needs discovery.kubernetes"},
		"long restart": {func(a *Announce) { a.Peers[0].GracefulRestart = &GracefulRestart{Seconds: 4096} },
			"announce.peers[0].gracefulRestart.seconds", "must be 0 (30) to 4095, is 4096"},
		"short restart": {func(a *Announce) { a.Peers[0].GracefulRestart, a.SettleSeconds = &GracefulRestart{}, 20 },
			"announce.peers[0].gracefulRestart.seconds", "must be at least 43 with announce.settleSeconds 20"},
		"hasty BFD":     {bfd(BFD{Multiplier: 1}), "announce.peers[0].bfd.multiplier", "must be 0 (3) or 2 to 255, is 1"},
		"iBGP multihop": {func(a *Announce) { a.Peers[0].ASN, a.Peers[0].MultihopTTL = 64512, 2 }, "announce.peers[0].multihopTTL", "0 for a router with announce.asn"},
		"iBGP prepend":  {func(a *Announce) { a.Peers[1].ASN, a.Prepend = 64512, 2 }, "announce.prepend", "must be 0: announce.peers[1] has announce.asn (iBGP)"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := announcing(t)
			c.edit(&cfg.Announce)
			for _, e := range cfg.Validate() {
				if e.Path == c.path && strings.Contains(e.Msg, c.want) {
					return
				}
			}
			t.Errorf("got %v\nwant %s: ...%s...", cfg.Validate(), c.path, c.want)
		})
	}
}

func TestAnnounceSettings(t *testing.T) {
	c := announcing(t)
	med := 50
	c.Announce.Communities, c.Announce.LargeCommunities, c.Announce.MED = []string{"64512:100"}, []string{"64512:1:2"}, &med
	s := c.Announce.Settings()
	if s.Settle != time.Second || len(s.Allow) != 1 || s.Attributes.Communities[0] != 64512<<16|100 ||
		s.Attributes.LargeCommunities[0] != [3]uint32{64512, 1, 2} || *s.Attributes.MED != 50 || s.Attributes.LocalPref != nil {
		t.Errorf("%+v", s)
	}
	if c.Announce.Silence() != 30*time.Second || Default().Announce.Silence() != 0 {
		t.Errorf("silence %v, %v where nothing is announced", c.Announce.Silence(), Default().Announce.Silence())
	}
	p := Peer{HoldSeconds: 30}
	if p.Hold() != 30*time.Second || p.Keepalive() != 10*time.Second {
		t.Errorf("hold %v, keepalive %v", p.Hold(), p.Keepalive())
	}
	slow, fast := BFD{}, BFD{IntervalMilliseconds: 50, Multiplier: 4}
	if slow.Interval() != 300*time.Millisecond || slow.Lost() != 3 || fast.Interval() != 50*time.Millisecond || fast.Lost() != 4 {
		t.Errorf("BFD %v x %d, %v x %d", slow.Interval(), slow.Lost(), fast.Interval(), fast.Lost())
	}
	file := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(file, []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	p.PasswordFile = file
	if key, err := p.Password(); key != "secret" || err != nil {
		t.Errorf("%q, %v", key, err)
	}
}

// Objects give what the configuration leaves out.
func TestAnnounceByObjectsAlone(t *testing.T) {
	c := announcing(t)
	c.Announce.ASN, c.Announce.Peers, c.Announce.Prefixes = 0, nil, nil
	c.Announce.Objects = []string{"/etc/weir/pools.yaml"}
	if err := c.Validate().Err(); err != nil {
		t.Error(err)
	}
	c.Announce.Objects, c.Announce.ObjectNamespaces, c.Announce.ObjectSecrets = nil, []string{"metallb-system"}, []string{"router-password"}
	c.Discovery = Discovery{Kubernetes: &Kubernetes{Kubeconfig: "/etc/weir/kubeconfig"}}
	if err := c.Validate().Err(); err != nil {
		t.Error(err)
	}
}

// A routing daemon has the sessions.
func TestAnnounceByARoutingDaemon(t *testing.T) {
	c := announcing(t)
	c.Announce.Speaker, c.Announce.ASN, c.Announce.Peers = AnnounceKernel, 0, nil
	if err := c.Validate().Err(); err != nil {
		t.Error(err)
	}
}
