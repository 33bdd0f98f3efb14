package worker

import (
	"testing"

	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/table"
)

// BenchmarkPortRange compares a Service with a range of 10,000 UDP ports with one with a port.
func BenchmarkPortRange(b *testing.B) {
	const first, ports, flows = 10_000, 10_000, 4096
	for name, n := range map[string]int{"one": 1, "range": ports} {
		l := newBench(b)
		fe := table.Frontend{AddrPort: ap(node4, first), Proto: header.ProtoUDP, Kind: table.LoadBalancer, Port: first}
		if n > 1 {
			fe.LastPort = uint16(first + n - 1)
		}
		s := table.Service{Name: "ns/media", Pools: []table.Pool{{Endpoints: []table.Endpoint{{AddrPort: ap(endpoint4, first)}}}}, Frontends: []table.Frontend{fe}}
		if _, err := l.lb.tables.Apply([]table.Service{s}, nil); err != nil {
			b.Fatal(err)
		}
		frames := make([][]byte, flows)
		for i := range frames {
			p := request(false, header.ProtoUDP)
			p.src, p.dst = ap(client4, uint16(1024+i)), ap(node4, uint16(first+i*7%n))
			frames[i] = p.build(b)
			l.one(portClient, frames[i], portServer)
		}
		b.Run("established/"+name, func(b *testing.B) {
			runPackets(b, l, func(i int) []byte { return frames[i%flows] })
		})
		b.Run("new/"+name, func(b *testing.B) {
			runPackets(b, l, func(i int) []byte {
				if i%flows == 0 {
					b.StopTimer()
					l.forgetFlows()
					b.StartTimer()
				}
				return frames[i%flows]
			})
		})
	}
}
