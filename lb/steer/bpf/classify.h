/* SPDX-License-Identifier: Apache-2.0 */
/*
 * classify says whether a packet is Weir's.
 *
 * In the order of a packet:
 *
 *   classify      Ethernet and VLAN tags: for this interface's own address, which protocol
 *   classify_ipv4, classify_ipv6    to addresses, protocol and ports
 *   classify_icmp4, classify_icmp6  errors by the packet that they quote, echo requests
 *   is_tunnelled  the packet in a tunnel's, that such an error quotes
 *   skip_extensions                 what is behind IPv6 extension headers (extension.h)
 *   classify_fragment               later fragments after the first (fragment.h)
 *   lookup        translated ports and their flows, then frontends, then ranges of ports (frontend.h)
 */
#ifndef WEIR_CLASSIFY_H
#define WEIR_CLASSIFY_H

#include "deny.h"
#include "frontend.h"
#include "extension.h"
#include "fragment.h"
#include "segment.h"
#include "vlan.h"

/* is_syn: the TCP segment at p begins a connection. */
static __always_inline int is_syn(struct cursor p)
{
	const __u8 *header = p.at;
	if (p.at + TCP_HEADER > p.end)
		return 0;
	return (header[13] & (TCP_FIN | TCP_SYN | TCP_RST | TCP_ACK)) == TCP_SYN;
}

static __always_inline int has_ports(__u8 protocol)
{
	return protocol == IPPROTO_TCP || protocol == IPPROTO_UDP || protocol == IPPROTO_SCTP;
}

static __always_inline __u32 header_size(__u8 protocol)
{
	switch (protocol) {
	case IPPROTO_TCP:
		return TCP_HEADER;
	case IPPROTO_SCTP:
		return SCTP_HEADER;
	default:
		return UDP_HEADER;
	}
}

/*
 * classify_l4 takes what to->protocol says to be at p. Of a packet that is DENIED, list is the deny
 * list. Fragments, pings and ICMP errors of denied clients are the packet loop's.
 */
static __always_inline enum verdict classify_l4(struct cursor p, struct frontend_key *to, struct tuple *t,
						const struct source *from, __u32 *list)
{
	if (!has_ports(to->protocol))
		return PASS_OTHER_PROTOCOL;
	const struct ports *ports = p.at;
	if (p.at + header_size(to->protocol) > p.end)
		return PASS_MALFORMED;
	to->port = ports->destination;
	set_ports(t, ports, to->protocol);
	if (is_translated(to, t))
		return REDIRECTED;
	int syn = to->protocol == IPPROTO_TCP && is_syn(p);
	const struct frontend *frontend = find_frontend(to, syn);
	if (!frontend && !in_range(to, syn))
		return PASS_NO_MATCH;
	*list = denying_list(from, frontend ? frontend->lists : 0, syn);
	return *list ? DENIED : REDIRECTED;
}

/*
 * classify_quoted takes the start of the transport header that an error quotes. t has the
 * addresses of an answer to the quoted packet.
 */
static __always_inline enum verdict classify_quoted(struct cursor p, struct frontend_key *from, struct tuple *t)
{
	const struct ports *ports = p.at;
	if (!has_ports(from->protocol))
		return PASS_OTHER_PROTOCOL;
	if (p.at + sizeof(*ports) > p.end)
		return PASS_MALFORMED;
	from->port = ports->source;
	const struct ports answer = { .source = ports->destination, .destination = ports->source };
	set_ports(t, &answer, from->protocol);
	return lookup(from, 0, t);
}

/* to_frontend: p is behind the IP header of a packet to `to`. */
static __always_inline int to_frontend(struct cursor p, struct frontend_key *to)
{
	const struct ports *ports = p.at;
	if (!has_ports(to->protocol) || p.at + sizeof(*ports) > p.end)
		return 0;
	to->port = ports->destination;
	return bpf_map_lookup_elem(&frontends, to) != 0 || in_range(to, 0);
}

/*
 * is_tunnelled: p is behind the IP header of a quoted packet. One of a tunnel is
 * Weir's if what is in it is to a frontend, as far as the quote shows that.
 */
static __always_inline int is_tunnelled(struct cursor p, __u8 protocol)
{
	if (protocol == IPPROTO_UDP) {
		const struct gue *gue = p.at;
		if (p.at + sizeof(*gue) > p.end || gue->ports.destination != bpf_htons(GUE_PORT) || gue->version)
			return 0;
		protocol = gue->next_header;
		p.at += sizeof(*gue);
	}
	if (protocol == IPPROTO_IPIP) {
		const struct ipv4 *ip = p.at;
		if (p.at + sizeof(*ip) > p.end)
			return 0;
		__u32 header = (ip->version_ihl & 0x0f) * 4;
		if (ip->version_ihl >> 4 != 4 || header < sizeof(*ip) || ip->fragment & bpf_htons(IP_FRAGMENT_OFFSET))
			return 0;
		struct frontend_key to = {
			.address = { ip->destination },
			.protocol = ip->protocol,
			.family = 4,
		};
		p.at += header;
		return to_frontend(p, &to);
	}
	if (protocol == IPPROTO_IPV6) {
		const struct ipv6 *ip = p.at;
		if (p.at + sizeof(*ip) > p.end || (ip->version_class_label & bpf_htonl(0xf0000000)) != bpf_htonl(0x60000000))
			return 0;
		struct frontend_key to = {
			.address = { ip->destination[0], ip->destination[1], ip->destination[2], ip->destination[3] },
			.protocol = ip->next_header,
			.family = 6,
		};
		p.at += sizeof(*ip);
		return to_frontend(p, &to);
	}
	return 0;
}

/*
 * classify_icmp4: an error is Weir's if it quotes a packet that Weir sent, from
 * a frontend to a client or from a translated port to an endpoint. An echo
 * request is Weir's if nobody else would answer it.
 */
static __always_inline enum verdict classify_icmp4(struct cursor p, const struct frontend_key *to)
{
	const struct icmp *icmp = p.at;
	if (p.at + sizeof(*icmp) > p.end)
		return PASS_MALFORMED;
	if (icmp->type == ICMP_ECHO)
		return is_vip(to) ? REDIRECTED : PASS_OTHER_PROTOCOL;
	if (icmp->type != ICMP_UNREACHABLE && icmp->type != ICMP_TIME_EXCEEDED && icmp->type != ICMP_PARAMETER_PROBLEM)
		return PASS_OTHER_PROTOCOL;
	p.at += sizeof(*icmp);

	const struct ipv4 *ip = p.at;
	if (p.at + sizeof(*ip) > p.end)
		return PASS_MALFORMED;
	__u32 header = (ip->version_ihl & 0x0f) * 4;
	if (ip->version_ihl >> 4 != 4 || header < sizeof(*ip))
		return PASS_MALFORMED;
	if (ip->fragment & bpf_htons(IP_FRAGMENT_OFFSET))
		return PASS_FRAGMENT; /* quotes no ports */
	struct frontend_key from = {
		.address = { ip->source },
		.protocol = ip->protocol,
		.family = 4,
	};
	p.at += header;
	if (icmp->type == ICMP_UNREACHABLE && icmp->code == ICMP_FRAG_NEEDED && is_tunnelled(p, from.protocol))
		return REDIRECTED;
	struct tuple answer = { .family = 4, .key = { pair(ip->destination, ip->source) } };
	return classify_quoted(p, &from, &answer);
}

/* classify_icmp6 is the same for ICMPv6. */
static __always_inline enum verdict classify_icmp6(struct cursor p, const struct frontend_key *to)
{
	const struct icmp *icmp = p.at;
	if (p.at + sizeof(*icmp) > p.end)
		return PASS_MALFORMED;
	if (icmp->type == ICMPV6_ECHO)
		return is_vip(to) ? REDIRECTED : PASS_OTHER_PROTOCOL;
	if (icmp->type < ICMPV6_UNREACHABLE || icmp->type > ICMPV6_PARAMETER_PROBLEM)
		return PASS_OTHER_PROTOCOL;
	p.at += sizeof(*icmp);

	const struct ipv6 *ip = p.at;
	if (p.at + sizeof(*ip) > p.end)
		return PASS_MALFORMED;
	if ((ip->version_class_label & bpf_htonl(0xf0000000)) != bpf_htonl(0x60000000))
		return PASS_MALFORMED;
	struct frontend_key from = {
		.address = { ip->source[0], ip->source[1], ip->source[2], ip->source[3] },
		.protocol = ip->next_header,
		.family = 6,
	};
	p.at += sizeof(*ip);
	if (from.protocol == IPPROTO_FRAGMENT) {
		const struct ipv6_fragment *fragment = p.at;
		if (p.at + sizeof(*fragment) > p.end)
			return PASS_MALFORMED;
		if (fragment->offset & bpf_htons(IPV6_FRAGMENT_OFFSET))
			return PASS_FRAGMENT;
		from.protocol = fragment->next_header;
		p.at += sizeof(*fragment);
	}
	if (icmp->type == ICMPV6_TOO_BIG && is_tunnelled(p, from.protocol))
		return REDIRECTED;
	struct tuple answer = {
		.family = 6,
		.key = { pair(ip->destination[0], ip->destination[1]), pair(ip->destination[2], ip->destination[3]),
			 pair(ip->source[0], ip->source[1]), pair(ip->source[2], ip->source[3]) },
	};
	return classify_quoted(p, &from, &answer);
}

/*
 * classify_fragment: p is behind the IP headers of a fragment. The ports of the
 * first one decide for all of its datagram. A later one that comes before it
 * is Weir's if it cannot be anyone else's.
 */
static __always_inline enum verdict classify_fragment(struct cursor p, struct frontend_key *to,
						      const struct datagram_key *datagram, struct tuple *t, int first)
{
	if (!first) {
		if (remembered(datagram) || is_vip(to))
			return REDIRECTED;
		return PASS_FRAGMENT;
	}
	enum verdict verdict = PASS_OTHER_PROTOCOL;
	if (has_ports(to->protocol)) {
		/* A transport header that is cut is refused by whose it is. */
		const struct ports *ports = p.at;
		if (p.at + sizeof(*ports) > p.end)
			return PASS_MALFORMED;
		to->port = ports->destination;
		set_ports(t, ports, to->protocol);
		verdict = lookup(to, 0, t);
	} else if (is_ping(to)) {
		verdict = REDIRECTED;
	}
	remember(datagram, verdict == REDIRECTED);
	return verdict;
}

static __always_inline enum verdict classify_ipv4(struct cursor p, const struct interface *in, __u32 *list)
{
	const struct ipv4 *ip = p.at;
	if (p.at + sizeof(*ip) > p.end)
		return PASS_MALFORMED;
	__u32 header = (ip->version_ihl & 0x0f) * 4;
	if (ip->version_ihl >> 4 != 4 || header < sizeof(*ip))
		return PASS_MALFORMED;
	if (in->flags & INTERFACE_ALL)
		return REDIRECTED;
	struct frontend_key to = {
		.address = { ip->destination },
		.protocol = ip->protocol,
		.family = 4,
	};
	struct source from = source4(ip);
	struct tuple t = { .family = 4, .key = { pair(ip->source, ip->destination) } };
	p.at += header;
	if (ip->fragment & bpf_htons(IP_MORE_FRAGMENTS | IP_FRAGMENT_OFFSET)) {
		struct datagram_key datagram = {
			.source = { ip->source },
			.destination = { ip->destination },
			.id = ip->id,
			.protocol = ip->protocol,
			.family = 4,
		};
		if (!has_ports(ip->protocol) && !is_ping(&to))
			return PASS_OTHER_PROTOCOL;
		return classify_fragment(p, &to, &datagram, &t, !(ip->fragment & bpf_htons(IP_FRAGMENT_OFFSET)));
	}
	if (to.protocol == IPPROTO_ICMP)
		return classify_icmp4(p, &to);
	return classify_l4(p, &to, &t, &from, list);
}

/* is_neighbor_discovery: p is at an ICMPv6 header. */
static __always_inline int is_neighbor_discovery(struct cursor p)
{
	const __u8 *type = p.at;
	if (p.at + 1 > p.end)
		return 0;
	return *type >= ICMPV6_ND_FIRST && *type <= ICMPV6_ND_LAST;
}

static __always_inline enum verdict classify_ipv6(struct cursor p, const struct interface *in, __u32 *list)
{
	const struct ipv6 *ip = p.at;
	if (p.at + sizeof(*ip) > p.end)
		return PASS_MALFORMED;
	if ((ip->version_class_label & bpf_htonl(0xf0000000)) != bpf_htonl(0x60000000))
		return PASS_MALFORMED;
	p.at += sizeof(*ip);
	if (in->flags & INTERFACE_ALL) {
		/* The kernel answers for the neighbors of the host veth itself. */
		if (ip->next_header == IPPROTO_ICMPV6 && is_neighbor_discovery(p))
			return PASS_OTHER_PROTOCOL;
		return REDIRECTED;
	}

	struct frontend_key to = {
		.address = { ip->destination[0], ip->destination[1], ip->destination[2], ip->destination[3] },
		.family = 6,
	};
	struct source from = source6(ip);
	__be16 place = 0; /* in the datagram, 0 without a fragment header */
	__be32 id = 0;
	enum verdict verdict = skip_extensions(&p, ip->next_header, &to.protocol, &id, &place);
	if (verdict != REDIRECTED)
		return verdict;
	struct tuple t = {
		.family = 6,
		.key = { pair(ip->source[0], ip->source[1]), pair(ip->source[2], ip->source[3]),
			 pair(ip->destination[0], ip->destination[1]), pair(ip->destination[2], ip->destination[3]) },
	};
	if (place) {
		struct datagram_key datagram = {
			.source = { ip->source[0], ip->source[1], ip->source[2], ip->source[3] },
			.destination = { ip->destination[0], ip->destination[1], ip->destination[2], ip->destination[3] },
			.id = id,
			.family = 6,
		};
		return classify_fragment(p, &to, &datagram, &t, !(place & bpf_htons(IPV6_FRAGMENT_OFFSET)));
	}
	if (to.protocol == IPPROTO_ICMPV6)
		return classify_icmp6(p, &to);
	return classify_l4(p, &to, &t, &from, list);
}

static __always_inline int is_tag(__be16 type)
{
	return type == bpf_htons(ETH_P_8021Q) || type == bpf_htons(ETH_P_8021AD);
}

/*
 * classify takes a frame. The tag that the kernel has taken off it, if any, is that of
 * EtherType taken and with control. list is as of classify_l4.
 */
static __always_inline enum verdict classify(struct cursor p, const struct interface *in, __u32 ifindex, __be16 taken,
					     __be16 control, __u32 *list)
{
	const struct ethernet *eth = p.at;
	if (p.at + sizeof(*eth) > p.end)
		return PASS_MALFORMED;
	int vlans_only = in->flags & INTERFACE_VLANS;
	if (!vlans_only && !is_for(eth, in->mac))
		return PASS_OTHER_MAC;
	p.at += sizeof(*eth);

	/*
	 * A VLAN is a network of its own: Weir's only where Weir is attached to it.
	 * A priority tag (VLAN 0, IEEE 802.1Q section 6.9.1) names none.
	 */
	__be16 type = eth->type;
	__u32 vlan = 0;
	if (taken) {
		vlan = vlan_of(taken, control);
		if (is_tag(type))
			return PASS_VLAN;
	} else if (is_tag(type)) {
		const struct vlan_tag *tag = p.at;
		if (p.at + sizeof(*tag) > p.end)
			return PASS_MALFORMED;
		vlan = vlan_of(type, tag->control);
		type = tag->type;
		p.at += sizeof(*tag);
		if (is_tag(type))
			return PASS_VLAN; /* a VLAN in a VLAN */
	}
	if (vlans_only) {
		enum verdict of_vlan = is_of_vlan(ifindex, vlan, eth);
		if (of_vlan != REDIRECTED)
			return of_vlan;
	} else if (vlan) {
		return PASS_VLAN;
	}
	switch (type) {
	case bpf_htons(ETH_P_IP):
		return classify_ipv4(p, in, list);
	case bpf_htons(ETH_P_IPV6):
		return classify_ipv6(p, in, list);
	default:
		return PASS_OTHER_ETHERTYPE;
	}
}

#endif
