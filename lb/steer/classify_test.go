package steer

import (
	"net"
	"net/netip"
	"testing"

	"github.com/google/gopacket/layers"
	"golang.org/x/sys/unix"
)

// Classify says what the program would say, counts nothing for any interface, and leaves no
// interface behind.
func TestClassifyAsksTheProgram(t *testing.T) {
	p := newTestProgram(t, false)
	prog := steering(t, p)
	vlanMAC := net.HardwareAddr{2, 0, 0, 0, 0, 100}
	plain := &Attachment{IfIndex: 7, mac: ownMAC}
	vlans := &Attachment{IfIndex: 7, mac: ownMAC, vlans: map[VLAN]net.HardwareAddr{0x8100<<16 | 100: vlanMAC}}
	host := &Attachment{IfIndex: 7, mac: ownMAC, all: true}
	frontend, ssh := packet4(t, layers.IPProtocolTCP, front4), packet4(t, layers.IPProtocolTCP, at(front4.Addr(), 22))
	tagged := tagIDs(append(append([]byte{}, vlanMAC...), frontend[6:]...), 100)
	ack := func(frame []byte, at int) []byte {
		frame = append([]byte{}, frame...)
		frame[at+13] = 0x10
		return frame
	}
	former4, former6 := at(front4.Addr(), 4444), at(front6.Addr(), 4444)
	for _, f := range []netip.AddrPort{former4, former6} {
		must(t, p.AddFrontend(f, unix.IPPROTO_TCP, FlowsOnly))
	}
	syn4, syn6 := packet4(t, layers.IPProtocolTCP, former4), packet6(t, layers.IPProtocolTCP, former6)
	total := func() (sum [Verdicts]uint64) {
		sum, err := p.TotalCounters()
		must(t, err)
		return sum
	}
	before := total()
	for _, c := range []struct {
		name  string
		in    *Attachment
		frame []byte
		want  Verdict
	}{
		{"to a frontend", plain, frontend, Redirected},
		{"to an SNAT port", plain, packet6(t, layers.IPProtocolTCP, at(snat6, snatHi)), Redirected},
		{"to no frontend", plain, ssh, PassNoMatch},
		{"a SYN to a frontend for flows only", plain, syn4, PassNoMatch},
		{"a SYN of IPv6 to a frontend for flows only", plain, syn6, PassNoMatch},
		{"another segment to it", plain, ack(syn4, atTCP4), Redirected},
		{"another segment of IPv6 to it", plain, ack(syn6, 14+40), Redirected},
		{"to no frontend, from the host veth", host, ssh, Redirected},
		{"to another host", plain, append(append([]byte{}, otherMAC...), frontend[6:]...), PassOtherMAC},
		{"of a VLAN that is not attached", plain, tagged, PassOtherMAC},
		{"of a VLAN that is attached", vlans, tagged, Redirected},
		{"untagged, where VLANs alone are attached", vlans, frontend, PassVLAN},
	} {
		got, err := p.classify(prog, c.in, c.frame)
		if err != nil || got != c.want {
			t.Errorf("%s: %v, %v; want %v", c.name, got, err, c.want)
		}
	}
	if after := total(); after != before {
		t.Errorf("counted %v, were %v", after, before)
	}
	var left steerInterface
	if err := p.maps.steer.Interfaces.Lookup(uint32(testInterface), &left); err == nil {
		t.Errorf("interface %+v is left", left)
	}
	if _, err := p.Classify(7, frontend); err == nil {
		t.Error("classified for an interface that is not attached")
	}
}
