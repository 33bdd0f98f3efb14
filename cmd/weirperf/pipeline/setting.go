package pipeline

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/route"
	"github.com/weirlb/weir/lb/snat"
	"github.com/weirlb/weir/lb/table"
)

// The network around the load balancer: clients behind a router on port 0, 256
// endpoints on the link of port 1.
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
)

var (
	vip       = netip.MustParseAddrPort("203.0.113.10:80")
	router    = netip.MustParseAddr("192.0.2.254")
	macWeir   = [6]byte{2, 0, 0, 0, 0, 0x10}
	macRouter = [6]byte{2, 0, 0, 0, 0, 0x0c}
)

func addr4(n uint32) netip.Addr {
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], n)
	return netip.AddrFrom4(b)
}

// endpointMAC is the MAC address of endpoint n.
func endpointMAC(n uint32) [6]byte { return [6]byte{2, 0, 0, 1, 0, byte(n)} }

// newBalancer makes a load balancer that serves the Service to be measured.
func newBalancer(m mode, workers, maxFlows int) (*inMemory, error) {
	cfg := inMemoryConfig{
		Workers: workers, Ports: 2, MaxFlows: maxFlows, Frames: framesEach * workers,
		Routes: map[netip.Prefix]route.Path{
			netip.PrefixFrom(addr4(clientNet), 8):    {Kind: route.Attached, Port: portClient, MTU: 1500, NextHop: router},
			netip.PrefixFrom(addr4(endpointNet), 16): {Kind: route.Attached, Port: portServer, MTU: 1500},
		},
		Hops: []route.StaticHop{{Port: portClient, NextHop: router, MAC: macRouter, Src: macWeir, MTU: 1500}},
	}
	pool := table.Pool{}
	for i := range uint32(endpoints) {
		a := addr4(endpointNet + i)
		cfg.Hops = append(cfg.Hops, route.StaticHop{Port: portServer, NextHop: a, MAC: endpointMAC(i), Src: macWeir, MTU: 1500})
		pool.Endpoints = append(pool.Endpoints, table.Endpoint{AddrPort: netip.AddrPortFrom(a, endpointPort)})
	}
	for i := range uint32(snatAddresses) {
		cfg.SNAT = append(cfg.SNAT, snat.Source{Addr: addr4(snatNet + i), Lo: snatLo, Hi: snatHi})
	}
	l, err := newInMemory(cfg)
	if err != nil {
		return nil, err
	}
	s := table.Service{Name: "perf/pipeline", Pools: []table.Pool{pool}}
	for _, proto := range []uint8{header.ProtoTCP, header.ProtoUDP} {
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
