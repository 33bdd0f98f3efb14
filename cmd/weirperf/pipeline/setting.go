package pipeline

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/route"
	"github.com/weirlb/weir/lb/snat"
	"github.com/weirlb/weir/lb/table"
)

// The network around the load balancer: clients behind a router on port 0, 256
// endpoints on the link of port 1, or in dnat behind the kernel, to which port 1 leads.
const (
	endpoints     = 256
	snatAddresses = 4
	portClient    = 0
	portServer    = 1
	clientNet     = 0x0a000000 // 10.0.0.0/8
	endpointNet   = 0xac100000 // 172.16.0.0/16
	snatNet       = 0xc6336400 // 198.51.100.0/24
	perClient     = 1 << 10    // connections per client address
	framesEach    = 8192
	snatLo        = 1024
	snatHi        = 65535
	endpointPort  = 8080
	vipHost       = 0xcb00710a // 203.0.113.10
	vipPort       = 80
	routerHost    = 0xc00002fe // 192.0.2.254
	hostHop       = 0xa9fe4d01 // 169.254.77.1, of dnat the next hop in the kernel
)

var (
	prefix6   = netip.MustParseAddr("2001:db8:4::").As16() // of every IPv6 address
	macWeir   = [6]byte{2, 0, 0, 0, 0, 0x10}
	macRouter = [6]byte{2, 0, 0, 0, 0, 0x0c}
	macKernel = [6]byte{2, 0, 0, 0, 0, 0x20}
)

// address is an address of the network: of IPv6 the last 32 bits are those of IPv4.
func address(ipv6 bool, n uint32) netip.Addr {
	b := prefix6
	binary.BigEndian.PutUint32(b[12:], n)
	if ipv6 {
		return netip.AddrFrom16(b)
	}
	return netip.AddrFrom4([4]byte(b[12:]))
}

// endpointMAC is the MAC address of endpoint n.
func endpointMAC(n uint32) [6]byte { return [6]byte{2, 0, 0, 1, 0, byte(n)} }

// newBalancer makes a load balancer that serves the Service to be measured.
func newBalancer(m mode, ipv6 bool, workers, maxFlows int) (*inMemory, error) {
	prefix := func(n uint32, length int) netip.Prefix {
		if ipv6 {
			length += 96
		}
		return netip.PrefixFrom(address(ipv6, n), length)
	}
	router := address(ipv6, routerHost)
	cfg := inMemoryConfig{
		Workers: workers, Ports: 2, MaxFlows: maxFlows, Frames: framesEach * workers,
		Routes: map[netip.Prefix]route.Path{
			prefix(clientNet, 8):    {Kind: route.Attached, Port: portClient, MTU: 1500, NextHop: router},
			prefix(endpointNet, 16): {Kind: route.Attached, Port: portServer, MTU: 1500},
		},
		Hops: []route.StaticHop{{Port: portClient, NextHop: router, MAC: macRouter, Src: macWeir, MTU: 1500}},
	}
	if m.Mode == conntrack.ModeDNAT {
		hop := address(ipv6, hostHop)
		cfg.HostVeth = portServer
		cfg.Routes[prefix(endpointNet, 16)] = route.Path{Kind: route.Host, Port: portServer, MTU: 1500, NextHop: hop, LocalSource: hop}
		cfg.Hops = append(cfg.Hops, route.StaticHop{Port: portServer, NextHop: hop, MAC: macKernel, Src: macWeir, MTU: 1500})
	}
	pool := table.Pool{}
	for i := range uint32(endpoints) {
		a := address(ipv6, endpointNet+i)
		cfg.Hops = append(cfg.Hops, route.StaticHop{Port: portServer, NextHop: a, MAC: endpointMAC(i), Src: macWeir, MTU: 1500})
		pool.Endpoints = append(pool.Endpoints, table.Endpoint{AddrPort: netip.AddrPortFrom(a, endpointPort)})
	}
	for i := range uint32(snatAddresses) {
		cfg.SNAT = append(cfg.SNAT, snat.Source{Addr: address(ipv6, snatNet+i), Lo: snatLo, Hi: snatHi})
	}
	l, err := newInMemory(cfg)
	if err != nil {
		return nil, err
	}
	s := table.Service{Name: "perf/pipeline", Pools: []table.Pool{pool}}
	for _, proto := range []uint8{header.ProtoTCP, header.ProtoUDP} {
		vip := netip.AddrPortFrom(address(ipv6, vipHost), vipPort)
		s.Frontends = append(s.Frontends, table.Frontend{AddrPort: vip, Proto: proto, Kind: table.LoadBalancer, Mode: m.Mode})
	}
	if _, err := l.Tables().Apply([]table.Service{s}, nil); err != nil {
		_ = l.Close()
		return nil, fmt.Errorf("publish the Service: %w", err)
	}
	return l, nil
}

// client is the client's address and port of flow n.
func client(n uint32) (addr uint32, port uint16) {
	return clientNet + n/perClient, uint16(1024 + n%perClient)
}
