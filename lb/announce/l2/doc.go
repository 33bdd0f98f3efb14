// Package l2 announces addresses on a link by ARP and neighbor discovery. The nodes on a link agree
// by memberlist (SWIM) on who is alive, tell each other which addresses they serve and own, and
// elect an owner per address by rendezvous hashing.
//
// Nodes send each other their claims (which addresses they would own, and which they own) over the
// TCP streams of memberlist, whole and on change. From equal claims each node comes to the same
// owner: an address stays at its owner; without an owner the first by rendezvous hash takes it. An
// owner that must give an address up says so, and answers until it hears that another has taken it.
// memberlist encrypts and does not number what it sends: claims that could be recorded ones count with
// the answer to a challenge.
// The transport is own code: sockets bound to the interface, which send a TTL of 255 and take
// nothing less (RFC 5082). A process that has not run for as long as the others need to bury it
// does not answer before it has read what they sent. ARP and the two messages of neighbor discovery
// are own code, too: mdlayher/arp has no releases, and sends on a socket of its own.
//
// # Why not VRRP
//
// An address must be at a node that serves it. VRRP 3 (RFC 9568) elects a master for a virtual
// router, of which a link has 255 per family, with all addresses of it or none: two addresses with
// endpoints on different nodes (externalTrafficPolicy: Local) cannot share a router. 1,000 addresses
// advertised every 100 ms take 40 packets per second and more; memberlist sends none per address. A
// forged packet with priority 255 takes all addresses of a router away, since the RFC has removed
// authentication; memberlist has AES-GCM with a shared key. A virtual MAC address needs a second
// address of the NIC, which clouds and access points refuse; here caches of clients follow gratuitous
// ARP and unsolicited advertisements. VRRP finds a death in 3 to 4 intervals, memberlist in 3 to 5
// of three quarters the length. In a partition both have an owner on each side. VRRP alone interoperates with
// keepalived and routers.
package l2
