/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Packets that may be repeated: TCP or UDP right behind an IP header without options, whole,
 * with a TTL that does not expire, and no segment that begins or ends a connection.
 */
#ifndef WEIR_SEGMENT_H
#define WEIR_SEGMENT_H

#include "extension.h"
#include "hash.h"


struct tcp {
	struct ports ports;
	__be32 sequence;
	__be32 acknowledgment;
	__u8 offset;
	__u8 flags;
	__be16 window;
	__sum16 checksum;
	__be16 urgent;
};

struct udp {
	struct ports ports;
	__be16 length;
	__sum16 checksum;
};

/* What is read of a packet. */
struct segment {
	__u64 key[5];
	__u32 length;  /* of the IP packet */
	__u32 largest; /* of the IP packets that it is on the wire */
	__u32 sequence;
	__u32 end;
	__u32 acknowledgment;
	__u32 pieces; /* packets that it is on the wire */
	__u8 family;
	__u8 protocol;
	__u8 acknowledges; /* TCP with ACK */
	__u8 partial;      /* the checksum is the pseudo header's sum alone */
	__u8 quic_long;    /* UDP, and the payload may begin with QUIC's long header */
	__u8 port_flags;   /* that the port must have by which the packet leaves */
	__u8 tagged;       /* a VLAN tag is in the frame, or beside it */
	__u8 bare;         /* the packet can get no outer header here */
	__u8 jumbo;        /* there is an option with the length behind the IPv6 header */
};

/*
 * The length of a packet beyond what lies in one piece, and of its pieces on the wire. One of more
 * than 64 KB (BIG TCP) has 0 for its length, and until Linux 6.18 an option of IPv6 (RFC 2675),
 * which the kernel takes off the pieces.
 */
struct extent {
	__u32 total;    /* of the frame */
	__u32 gso_size; /* of the payload of each, 0: it leaves whole */
};

static __always_inline __u32 ip_header(int family)
{
	return family == 4 ? sizeof(struct ipv4) : sizeof(struct ipv6);
}

static __always_inline __u64 pair(__be32 low, __be32 high)
{
	return (__u64)le32(high) << 32 | le32(low);
}

static __always_inline int is_martian4(__be32 address)
{
	__u8 first = le32(address);
	return first == 0 || first == 127 || first >= 224;
}

/* is_martian6: multicast, unspecified, loopback, or an IPv4-mapped address. */
static __always_inline int is_martian6(const __be32 *a)
{
	if ((__u8)le32(a[0]) == 0xff)
		return 1;
	if (a[0] | a[1])
		return 0;
	return a[2] == bpf_htonl(0xffff) || (!a[2] && (a[3] & bpf_htonl(0xfffffffe)) == 0);
}

/*
 * read_ip4 reads the header at p, and returns the length of what is behind it, or -1. The
 * caller has checked that the frame holds it.
 */
static __always_inline int read_ip4(const struct ipv4 *ip, __u32 room, int pieces, struct segment *s, __u64 *pseudo)
{
	const __u32 *word = (const void *)ip;
	if (ip->version_ihl != 0x45 || ip->fragment & bpf_htons(IP_MORE_FRAGMENTS | IP_FRAGMENT_OFFSET) || ip->ttl <= 1)
		return -1;
	if (fold((__u64)word[0] + word[1] + word[2] + word[3] + word[4]) != 0xffff)
		return -1;
	if (is_martian4(ip->source) || is_martian4(ip->destination))
		return -1;
	s->length = bpf_ntohs(ip->length);
	if (!s->length && pieces)
		s->length = room;
	if (s->length > room || s->length < sizeof(*ip))
		return -1;
	s->protocol = ip->protocol;
	s->key[0] = pair(ip->source, ip->destination);
	*pseudo = (__u64)ip->source + ip->destination;
	return s->length - sizeof(*ip);
}

/* read_ip6 is the same for IPv6. */
static __always_inline int read_ip6(const struct ipv6 *ip, __u32 room, int pieces, struct segment *s, __u64 *pseudo)
{
	if ((ip->version_class_label & bpf_htonl(0xf0000000)) != bpf_htonl(0x60000000) || ip->hop_limit <= 1)
		return -1;
	if (is_martian6(ip->source) || is_martian6(ip->destination))
		return -1;
	s->length = sizeof(*ip) + bpf_ntohs(ip->payload_length);
	if (!ip->payload_length && pieces)
		s->length = room;
	else if (s->length > 0xffff)
		return -1;
	if (s->length > room)
		return -1;
	s->protocol = ip->next_header;
	s->jumbo = s->protocol == IPPROTO_HOPOPTS && !ip->payload_length && pieces;
	s->key[0] = pair(ip->source[0], ip->source[1]);
	s->key[1] = pair(ip->source[2], ip->source[3]);
	s->key[2] = pair(ip->destination[0], ip->destination[1]);
	s->key[3] = pair(ip->destination[2], ip->destination[3]);
	*pseudo = (__u64)ip->source[0] + ip->source[1] + ip->source[2] + ip->source[3] +
		  ip->destination[0] + ip->destination[1] + ip->destination[2] + ip->destination[3];
	return s->length - sizeof(*ip);
}

/* JUMBO_OPTION is the first half of a header with the option alone, but for the next header. */
#define JUMBO_OPTION bpf_htonl(0x0000c204)

/* read_jumbo takes the option at p off a packet with n bytes from there, and returns how many are left, or -1. */
static __always_inline int read_jumbo(struct cursor *p, int n, struct segment *s)
{
	const struct ipv6_extension *x = p->at;
	if ((void *)(x + 1) + sizeof(struct udp) > p->end || n < (int)sizeof(*x))
		return -1;
	if ((*(const __be32 *)x & ~bpf_htonl(0xff000000)) != JUMBO_OPTION)
		return -1;
	s->protocol = x->next_header;
	p->at += sizeof(*x);
	return n - sizeof(*x);
}

/* read_tcp reads a segment of n bytes at p; it returns the length of the header, 0 for no. */
static __always_inline __u32 read_tcp(struct cursor p, __u32 n, __u64 pseudo, struct segment *s)
{
	const struct tcp *tcp = p.at;
	if (p.at + sizeof(*tcp) > p.end || tcp->flags & (TCP_SYN | TCP_FIN | TCP_RST))
		return 0;
	__u32 header = (tcp->offset >> 4) * 4;
	if (header < sizeof(*tcp) || header > n)
		return 0;
	s->sequence = bpf_ntohl(tcp->sequence);
	s->end = s->sequence + n - header;
	s->acknowledgment = bpf_ntohl(tcp->acknowledgment);
	s->acknowledges = (tcp->flags & TCP_ACK) != 0;
	s->partial = tcp->checksum && fold(pseudo) == tcp->checksum;
	return header;
}

/* read_udp is the same for a datagram. */
static __always_inline __u32 read_udp(struct cursor p, __u32 n, __u64 pseudo, struct segment *s)
{
	const struct udp *udp = p.at;
	if (p.at + sizeof(*udp) > p.end)
		return 0;
	__u32 length = bpf_ntohs(udp->length);
	if (length < sizeof(*udp) || length > n)
		return 0;
	s->partial = udp->checksum && length == n && fold(pseudo) == udp->checksum;
	const __u8 *payload = p.at + sizeof(*udp);
	s->quic_long = p.at + sizeof(*udp) + 1 > p.end || *payload & 0x80;
	return sizeof(*udp);
}

/*
 * read_segment reads the packet of the family at p, and returns 0 for any that only the
 * packet loop may forward. room is the length of the frame from p on.
 */
static __always_inline int read_segment(struct cursor p, const struct extent *x, __u32 room, int family,
					struct segment *s)
{
	__u64 pseudo = 0;
	if (p.at + ip_header(family) + sizeof(struct udp) > p.end)
		return 0;
	s->family = family;
	int pieces = x->gso_size != 0;
	int n = family == 4 ? read_ip4(p.at, room, pieces, s, &pseudo) : read_ip6(p.at, room, pieces, s, &pseudo);
	p.at += ip_header(family);
	if (n >= 0 && s->jumbo)
		n = read_jumbo(&p, n, s);
	if (n < 0)
		return 0;
	const struct ports *ports = p.at;
	s->key[4] = le32(*(const __u32 *)ports) | (__u64)s->protocol << 32 | (__u64)family << 40;
	pseudo += (__u64)bpf_htons(s->protocol) + bpf_htonl(n);
	__u32 header = 0;
	if (s->protocol == IPPROTO_TCP)
		header = read_tcp(p, n, pseudo, s);
	else if (s->protocol == IPPROTO_UDP)
		header = read_udp(p, n, pseudo, s);
	if (!header)
		return 0;
	s->largest = s->length;
	if (x->gso_size)
		s->largest = ip_header(family) + header + x->gso_size;
	return 1;
}

#endif
