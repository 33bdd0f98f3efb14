/* SPDX-License-Identifier: Apache-2.0 */
/* The rewrite of a packet by its recipe, but for the TCP or UDP checksum. */
#ifndef WEIR_REWRITE_H
#define WEIR_REWRITE_H

#include "find.h"

/* What a decrement of the TTL adds to the delta of an IPv4 header. */
#define TTL_DELTA 0xfffe

/* put_macs writes the addresses, whose first byte is the lowest, by stores that are aligned. */
static __always_inline void put_macs(void *frame, __u64 destination, __u64 source)
{
	*(__u16 *)frame = le16(destination);
	*(__u32 *)(frame + 2) = le32(destination >> 16);
	*(__u32 *)(frame + 6) = le32(source);
	*(__u16 *)(frame + 10) = le16(source >> 32);
}

/* update applies a delta to a checksum (RFC 1624). */
static __always_inline __u16 update(__u16 checksum, __u32 delta)
{
	return le16(~fold((__u16)~le16(checksum) + delta));
}

/* translates: the packet gets other addresses and ports. Else it stays, but for the TTL. */
static __always_inline int translates(const struct recipe *r)
{
	return r->mode < FLOW_MODE_L2DSR;
}

/* put_ip4 takes 1 off the TTL and writes new addresses, if the recipe has some. */
static __always_inline void put_ip4(struct ipv4 *ip, const struct recipe *r)
{
	__u32 delta = TTL_DELTA;
	if (translates(r)) {
		delta += r->addr_delta;
		ip->source = le32(r->address[0]);
		ip->destination = le32(r->address[0] >> 32);
	}
	ip->ttl--;
	ip->checksum = update(ip->checksum, delta);
}

/* put_ip6 is the same for IPv6. */
static __always_inline void put_ip6(struct ipv6 *ip, const struct recipe *r)
{
	ip->hop_limit--;
	if (!translates(r))
		return;
	for (int i = 0; i < 2; i++) {
		ip->source[2 * i] = le32(r->address[i]);
		ip->source[2 * i + 1] = le32(r->address[i] >> 32);
		ip->destination[2 * i] = le32(r->address[2 + i]);
		ip->destination[2 * i + 1] = le32(r->address[2 + i] >> 32);
	}
}

/* put_packet writes the headers of the IP packet at ip, and the ports. */
static __always_inline void put_packet(void *ip, void *ports, int family, const struct recipe *r)
{
	if (family == 4)
		put_ip4(ip, r);
	else
		put_ip6(ip, r);
	if (translates(r))
		*(__u32 *)ports = le32(r->ports);
}

/* put_headers writes all in front of the transport header at frame + at, and the ports. */
static __always_inline void put_headers(void *frame, __u32 at, int family, const struct recipe *r)
{
	put_macs(frame, r->destination, r->source);
	put_packet(frame + at - ip_header(family), frame + at, family, r);
}

/* checksum_at is the offset of the checksum in the transport header. */
static __always_inline __u32 checksum_at(__u8 protocol)
{
	return protocol == IPPROTO_TCP ? __builtin_offsetof(struct tcp, checksum) : __builtin_offsetof(struct udp, checksum);
}

/* put_checksum updates the checksum of a whole packet; a datagram may have none. */
static __always_inline void put_checksum(__sum16 *sum, __u8 protocol, const struct recipe *r)
{
	__u16 was = *sum;
	if (protocol == IPPROTO_UDP && !was)
		return;
	was = update(was, r->l4_delta);
	*sum = protocol == IPPROTO_UDP && !was ? 0xffff : was;
}

#endif
