// Package pcapfilter selects frames by expressions in the language of tcpdump
// (pcap-filter(7)). It is written for the packet loop: [Read] and [Filter.Match] neither
// allocate nor call an interface.
//
// An expression is a list of primitives with and, or, not (or &&, ||, !) and parentheses.
// As in pcap-filter, not binds closest, and and or bind alike, from left to right. The
// primitives:
//
//	[ip|ip6|tcp|udp|sctp] [src|dst] host ADDRESS
//	[ip|ip6|tcp|udp|sctp] [src|dst] net PREFIX/LENGTH
//	[ip|ip6|tcp|udp|sctp] [src|dst] port NUMBER
//	[ip|ip6|tcp|udp|sctp] [src|dst] portrange FIRST-LAST
//	ip  ip6  arp  tcp  udp  sctp  icmp  icmp6
//	proto NUMBER, ip proto NUMBER, ip6 proto NUMBER
//	less LENGTH, greater LENGTH
//	vlan [NUMBER]
//	tcp[tcpflags] & MASK COMPARISON VALUE
//	service NAMESPACE/NAME
//
// It differs from pcap-filter in these points. Headers are found behind VLAN tags and IPv6
// extension headers. The later fragments of a datagram have no port. ARP packets have no
// address, and the flags of TCP are those of IPv6 packets too. Ports are numbers, and networks
// have a length. A Service stands for all packets from or to the frontends.
package pcapfilter
