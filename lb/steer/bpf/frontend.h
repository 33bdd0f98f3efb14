/* SPDX-License-Identifier: Apache-2.0 */
/* The look-ups that say whether an address and port is Weir's. */
#ifndef WEIR_FRONTEND_H
#define WEIR_FRONTEND_H

#include "hash.h"
#include "maps.h"

/* struct tuple has a packet's addresses and ports as struct flow_entry has them. */
struct tuple {
	__u64 key[5];
	__u64 family;
};

#ifdef STEER_BY_FLOW
int has_flow(const struct tuple *t);
#else
static __always_inline int has_flow(const struct tuple *t __attribute__((unused)))
{
	return 0;
}
#endif

/*
 * in_any_range: a range of ports of frontends has the address and port, and, for a
 * SYN, takes connections. A function of its own: it is seldom called, and the
 * verifier looks at it once.
 */
__attribute__((noinline)) static int in_any_range(const struct frontend_key *k, int syn)
{
	struct frontend_key all = {
		.address = { k->address[0], k->address[1], k->address[2], k->address[3] },
		.protocol = k->protocol,
		.family = k->family,
	};
	const struct frontend_ranges *found = bpf_map_lookup_elem(&ranges, &all);
	if (!found)
		return 0;
	__u16 port = bpf_ntohs(k->port);
	for (int i = 0; i < MAX_RANGES; i++) {
		const struct frontend_range *r = &found->range[i];
		if (r->last && port >= r->first && port <= r->last && !(syn && r->flags & FRONTEND_FLOWS_ONLY))
			return 1;
	}
	return 0;
}

static __always_inline int in_range(const struct frontend_key *k, int syn)
{
	__u32 first = 0;
	const __u32 *any = bpf_map_lookup_elem(&any_range, &first);
	return any && *any && in_any_range(k, syn);
}

/*
 * is_translated: the address and port is one from which Weir translates. At such an address a
 * packet is Weir's by its port, or by its flow: t is the tuple of the packet, or of an answer.
 */
static __always_inline int is_translated(const struct frontend_key *k, const struct tuple *t)
{
	struct address_key translated = {
		.address = { k->address[0], k->address[1], k->address[2], k->address[3] },
		.family = k->family,
	};
	const struct port_range *range = bpf_map_lookup_elem(&snat, &translated);
	__u16 port = bpf_ntohs(k->port);
	return range && ((port >= range->low && port <= range->high) || has_flow(t));
}

static __always_inline const struct frontend *find_frontend(const struct frontend_key *k, int syn)
{
	const struct frontend *frontend = bpf_map_lookup_elem(&frontends, k);
	return frontend && !(syn && frontend->flags & FRONTEND_FLOWS_ONLY) ? frontend : 0;
}

/*
 * lookup says whether an address and port is Weir's: the destination of a TCP,
 * UDP or SCTP packet, or the source of one that Weir may have sent. Translated
 * ports come first: they are at few addresses, so that the line with
 * them stays in the cache, while each port would hash to another line among the
 * frontends, to find nothing there. t is as of is_translated. syn: the packet is a SYN.
 */
static __always_inline enum verdict lookup(const struct frontend_key *k, int syn, const struct tuple *t)
{
	return is_translated(k, t) || find_frontend(k, syn) || in_range(k, syn) ? REDIRECTED : PASS_NO_MATCH;
}

/* is_vip: the address of k serves frontends and is not the node's own. */
static __always_inline int is_vip(const struct frontend_key *k)
{
	struct address_key vip = {
		.address = { k->address[0], k->address[1], k->address[2], k->address[3] },
		.family = k->family,
	};
	return bpf_map_lookup_elem(&vips, &vip) != 0;
}

/* is_ping: a fragment of ICMP to such an address may be of an echo request. */
static __always_inline int is_ping(const struct frontend_key *k)
{
	return k->protocol == (k->family == 4 ? IPPROTO_ICMP : IPPROTO_ICMPV6) && is_vip(k);
}

/* set_ports completes the tuple of a packet with ports. */
static __always_inline void set_ports(struct tuple *t, const struct ports *ports, __u8 protocol)
{
	t->key[4] = le32(*(const __u32 *)ports) | (__u64)protocol << 32 | t->family << 40;
}

#endif
