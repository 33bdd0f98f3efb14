/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Headers before packets: VLAN tags, and outer headers of ipip and gue, as lb/header has
 * them (Encap.Put). At TCX the kernel keeps tags beside the packet.
 */
#ifndef WEIR_ENCAP_H
#define WEIR_ENCAP_H

#include "rewrite.h"
#include "vlan.h"

#define ETHERNET sizeof(struct ethernet)
#define TAGGED   (ETHERNET + sizeof(struct vlan_tag))

/* HOP_LIMIT_DELTA is what a decrement of the hop limit adds to the sum of a header. */
#define HOP_LIMIT_DELTA 0xfeff

#define OUTER_TTL        64
#define IP_DONT_FRAGMENT 0x4000

/* What an outer header takes from the packet inside. */
struct inner {
	__u32 length;
	__u8 protocol; /* of IP in IP */
	__u8 tos;
	__u8 df;
};

/* put_outer4 writes an outer IPv4 header. Only without DF there is an identification: at random. */
static __always_inline void put_outer4(struct ipv4 *o, __u8 protocol, const struct inner *in, const struct recipe *r)
{
	const __u32 *word = (const void *)o;
	o->version_ihl = 0x45;
	o->tos = in->tos;
	o->length = bpf_htons(r->outer + in->length);
	o->id = in->df ? 0 : bpf_get_prandom_u32();
	o->fragment = in->df ? bpf_htons(IP_DONT_FRAGMENT) : 0;
	o->ttl = OUTER_TTL;
	o->protocol = protocol;
	o->checksum = 0;
	o->source = le32(r->address[0]);
	o->destination = le32(r->address[0] >> 32);
	o->checksum = ~fold((__u64)word[0] + word[1] + word[2] + word[3] + word[4]);
}

static __always_inline void put_outer6(struct ipv6 *o, const struct inner *in, const struct recipe *r)
{
	o->version_class_label = bpf_htonl(6 << 28 | in->tos << 20 | (r->ports & 0xfffff));
	o->payload_length = bpf_htons(in->length);
	o->next_header = in->protocol;
	o->hop_limit = OUTER_TTL;
	for (int i = 0; i < 2; i++) {
		o->source[2 * i] = le32(r->address[i]);
		o->source[2 * i + 1] = le32(r->address[i] >> 32);
		o->destination[2 * i] = le32(r->address[2 + i]);
		o->destination[2 * i + 1] = le32(r->address[2 + i] >> 32);
	}
}

/* put_gue writes the headers of UDP and GUE, without a checksum. The source port is a dynamic one. */
static __always_inline void put_gue(struct gue *g, const struct inner *in, __u32 flow)
{
	g->ports.source = bpf_htons(0xc000 | (__u16)flow);
	g->ports.destination = bpf_htons(GUE_PORT);
	g->length = bpf_htons(sizeof(*g) + in->length);
	g->checksum = 0;
	g->version = 0;
	g->next_header = in->protocol;
	g->flags = 0;
}

/* read_inner takes 1 off the TTL of the packet inside. */
static __always_inline void read_inner(void *ip, int family, const struct recipe *r, struct inner *in)
{
	if (family == 4) {
		struct ipv4 *ip4 = ip;
		in->protocol = IPPROTO_IPIP;
		in->tos = ip4->tos;
		in->df = (ip4->fragment & bpf_htons(IP_DONT_FRAGMENT)) != 0;
		put_ip4(ip4, r);
		return;
	}
	struct ipv6 *ip6 = ip;
	in->protocol = IPPROTO_IPV6;
	in->tos = bpf_ntohl(ip6->version_class_label) >> 20;
	in->df = 1; /* no router may fragment it */
	put_ip6(ip6, r);
}

/*
 * put_link writes MAC addresses and, if the recipe has one, the tag. The EtherType behind a tag
 * stays.
 */
static __always_inline void put_link(struct ethernet *eth, const struct recipe *r)
{
	put_macs(eth, r->destination, r->source);
	if (r->vlan) {
		struct vlan_tag *tag = (void *)(eth + 1);
		eth->type = bpf_htons(r->vlan & FLOW_VLAN_8021AD ? ETH_P_8021AD : ETH_P_8021Q);
		tag->control = bpf_htons(r->vlan & VLAN_ID);
	}
}

/* l3_of is the offset of the IP header in the frame that leaves. */
static __always_inline __u32 l3_of(const struct recipe *r)
{
	return r->vlan ? TAGGED : ETHERNET;
}

/* grow puts n bytes before the IP packet, besides those of a tag, and returns 0 if there is room. */
static __always_inline int grow(struct xdp_md *ctx, const struct segment *s, const struct recipe *r, int n)
{
	n += l3_of(r);
	n -= s->tagged ? TAGGED : ETHERNET;
	return n ? bpf_xdp_adjust_head(ctx, -n) : 0;
}

/* put_tunnel writes a frame with an outer header of n bytes before the packet of the family; 0: it cannot be. */
static __always_inline int put_tunnel(struct cursor frame, __u32 n, int family, struct inner *in, const struct recipe *r)
{
	if (frame.at + TAGGED > frame.end)
		return 0;
	void *outer = frame.at + l3_of(r), *ip = outer + n;
	if (ip + ip_header(family) > frame.end)
		return 0;
	read_inner(ip, family, r, in);
	put_link(frame.at, r);
	*(__be16 *)(outer - sizeof(__be16)) = bpf_htons(n == sizeof(struct ipv6) ? ETH_P_IPV6 : ETH_P_IP);
	if (n == sizeof(struct ipv6)) {
		put_outer6(outer, in, r);
	} else if (n == sizeof(struct ipv4)) {
		put_outer4(outer, in->protocol, in, r);
	} else {
		put_outer4(outer, IPPROTO_UDP, in, r);
		put_gue(outer + sizeof(struct ipv4), in, r->ports);
	}
	return 1;
}

/* put_outer is put_tunnel of any family and outer header. */
static __always_inline int put_outer(struct cursor frame, int family, struct inner *in, const struct recipe *r)
{
	__u32 n = r->outer;
	if (n == sizeof(struct ipv6))
		return family == 4 ? put_tunnel(frame, sizeof(struct ipv6), 4, in, r) :
				     put_tunnel(frame, sizeof(struct ipv6), 6, in, r);
	if (n == sizeof(struct ipv4))
		return family == 4 ? put_tunnel(frame, sizeof(struct ipv4), 4, in, r) :
				     put_tunnel(frame, sizeof(struct ipv4), 6, in, r);
	if (n == sizeof(struct ipv4) + sizeof(struct gue))
		return family == 4 ? put_tunnel(frame, sizeof(struct ipv4) + sizeof(struct gue), 4, in, r) :
				     put_tunnel(frame, sizeof(struct ipv4) + sizeof(struct gue), 6, in, r);
	return 0;
}

/*
 * encapsulate puts the outer header of r before the packet s, in a frame with so many bytes of
 * padding, which would end up inside. It returns XDP_REDIRECT, or XDP_PASS if the frame has no
 * room and is as it was. Not static: it is verified by itself.
 */
__attribute__((noinline)) int encapsulate(struct xdp_md *ctx, const struct segment *s, const struct recipe *r,
					  __u32 padding)
{
	if (!s || !r)
		return XDP_PASS;
	struct inner in = { .length = s->length };
	__u32 n = r->outer;
	if (n > sizeof(struct ipv6) || grow(ctx, s, r, n))
		return XDP_PASS;
	if (padding && bpf_xdp_adjust_tail(ctx, -(int)padding))
		return XDP_DROP; /* cannot be: the packet is left */
	struct cursor frame = { (void *)(long)ctx->data, (void *)(long)ctx->data_end };
	return put_outer(frame, s->family, &in, r) ? XDP_REDIRECT : XDP_DROP;
}

/* sum_of_outer is the sum of the outer header, but for one that sums up to 0 (IPv4 with its checksum). */
static __always_inline __u64 sum_of_outer(struct cursor frame, __u32 n)
{
	const __u32 *word = frame.at + ETHERNET;
	__u64 sum = 0;
	if (n != sizeof(struct ipv4) && (void *)(word + 8) <= frame.end)
		for (int i = 0; i < 8; i++)
			sum += word[i];
	if (n == sizeof(struct ipv6) && (void *)(word + 10) <= frame.end)
		sum += (__u64)word[8] + word[9];
	return sum;
}

/*
 * encapsulate_skb is encapsulate for TCX: it returns TCX_REDIRECT, or TCX_NEXT if the frame is as it
 * was, but for padding. The pieces of a large packet keep their length, and the kernel
 * writes the lengths of their headers.
 */
__attribute__((noinline)) int encapsulate_skb(struct __sk_buff *skb, const struct segment *s, const struct recipe *r,
					      __u32 padding)
{
	if (!s || !r)
		return TCX_NEXT;
	struct inner in = { .length = s->length };
	__u32 n = r->outer;
	__u64 flags = BPF_F_ADJ_ROOM_FIXED_GSO;
	flags |= n == sizeof(struct ipv6) ? BPF_F_ADJ_ROOM_ENCAP_L3_IPV6 : BPF_F_ADJ_ROOM_ENCAP_L3_IPV4;
	if (n == sizeof(struct ipv4) + sizeof(struct gue))
		flags |= BPF_F_ADJ_ROOM_ENCAP_L4_UDP;
	if (padding && bpf_skb_change_tail(skb, skb->len - padding, 0))
		return TCX_NEXT;
	if (bpf_skb_adjust_room(skb, n, BPF_ADJ_ROOM_MAC, flags))
		return TCX_NEXT;
	struct cursor frame = { (void *)(long)skb->data, (void *)(long)skb->data_end };
	int family = s->family;
	if (!put_outer(frame, family, &in, r))
		return TCX_DROP; /* cannot be: the headers are in one piece */
	/* The kernel's sum of all bytes, if it has one. */
	bpf_csum_update(skb, fold(sum_of_outer(frame, n) + (family == 6 ? le16(HOP_LIMIT_DELTA) : 0)));
	return TCX_REDIRECT;
}

/* put_tag takes off the tag by which a packet came to TCX, and gives it that of r. */
static __always_inline int put_tag(struct __sk_buff *skb, int tagged, __u16 vlan)
{
	if (tagged && bpf_skb_vlan_pop(skb))
		return TCX_DROP;
	__be16 type = bpf_htons(vlan & FLOW_VLAN_8021AD ? ETH_P_8021AD : ETH_P_8021Q);
	if (vlan && bpf_skb_vlan_push(skb, type, vlan & VLAN_ID))
		return TCX_DROP; /* cannot be: there is no tag in its place */
	return TCX_REDIRECT;
}

/* put_translated writes the frame of a packet of the family without an outer header. */
static __always_inline int put_translated(struct cursor frame, const struct segment *s, int family,
					  const struct recipe *r)
{
	if (frame.at + TAGGED > frame.end)
		return XDP_DROP;
	void *ip = frame.at + l3_of(r), *l4 = ip + ip_header(family);
	__u8 protocol = s->protocol;
	__sum16 *sum = l4 + checksum_at(protocol);
	if (l4 + sizeof(struct udp) > frame.end || (void *)(sum + 1) > frame.end)
		return XDP_DROP;
	put_link(frame.at, r);
	put_packet(ip, ip + ip_header(family), family, r);
	if (translates(r))
		put_checksum(sum, protocol, r);
	return XDP_REDIRECT;
}

/* put_tagged writes a frame that comes or leaves with a tag; its results are those of encapsulate. */
__attribute__((noinline)) int put_tagged(struct xdp_md *ctx, const struct segment *s, const struct recipe *r)
{
	if (!s || !r || grow(ctx, s, r, 0))
		return XDP_PASS;
	struct cursor frame = { (void *)(long)ctx->data, (void *)(long)ctx->data_end };
	return s->family == 4 ? put_translated(frame, s, 4, r) : put_translated(frame, s, 6, r);
}

#endif
