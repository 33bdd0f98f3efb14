/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The programs that forward packets of established flows by the flow table, as the packet
 * loop would (lb/worker), and steer all others:
 *
 *   weir_repeat    XDP: as weir_steer (steer.c) but for the packets that are forwarded here
 *   weir_ingress   TCX: to the packet loop by an interface of Weir's own, or to the kernel
 *
 * Userspace decides, the kernel repeats: these programs change no flow, and whatever is not
 * plain goes to the packet loop unmodified (segment.h, find.h).
 */
#define STEER_BY_FLOW
#include "encap.h"
#include "steer.h"

/* Set by the loader: weir_repeat forwards packets. Else it only steers, by ports and flows. */
const volatile __u8 repeats = 1;

/* Set by the loader: XDP packets may have several buffers, and their length can be asked for. */
const volatile __u8 has_frags = 0;

/* Set by the loader: BPF_F_IPV6 if bpf_l4_csum_replace knows it, else 0. */
const volatile __u64 ipv6_flag = 0;

/* is_ours: a frame of the interface's own, or of a VLAN that Weir is attached to. */
static __always_inline int is_ours(const struct ethernet *eth, const struct interface *in, __u32 ifindex, __u32 vlan)
{
	if (in->flags & INTERFACE_VLANS)
		return is_of_vlan(ifindex, vlan, eth) == REDIRECTED;
	return !vlan && is_for(eth, in->mac);
}

/* unpack is struct interface from its first 8 bytes and the flags. */
static __always_inline struct interface unpack(__u64 first, __u32 flags)
{
	union {
		__u64 first;
		struct interface in;
	} u = { .first = first };
	u.in.flags = flags;
	return u.in;
}

/* MOST_WORDS is how many words of 32 bits is_whole reads. */
#define MOST_WORDS 1024

/*
 * is_whole tells a whole checksum that is the pseudo header's sum by chance, as that of one
 * packet in 65,536 is, from a partial one: n bytes from offset at on, with it, sum up to 0xffff.
 * A process that dies would take such a packet with it, and without a process it would be lost as
 * often as it is sent again. A partial checksum that passes is also the right whole one, by the same sum.
 */
__attribute__((noinline)) int is_whole(struct xdp_md *ctx, __u32 at, __u32 n, __u32 pseudo)
{
	void *p = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u64 sum = pseudo;
	if (at > ETHERNET + sizeof(struct vlan_tag) + sizeof(struct ipv6) || n >= 4 * (MOST_WORDS + 1))
		return 0;
	p += at;
#pragma clang loop unroll(disable)
	for (int i = 0; i < MOST_WORDS && n >= 4; i++, n -= 4, p += 4) {
		asm volatile("" : "+r"(p)); /* or the compiler reckons with the end, which BPF forbids */
		if (p + 4 > end)
			return 0;
		sum += *(__u32 *)p;
	}
#pragma clang loop unroll(disable)
	for (int i = 0; i < 3 && n; i++, n--, p++) {
		asm volatile("" : "+r"(p));
		if (p + 1 > end)
			return 0;
		sum += i & 1 ? le16(*(__u8 *)p << 8) : le16(*(__u8 *)p);
	}
	if (n)
		return 0;
	return fold(sum) == 0xffff;
}

/*
 * repeat_xdp returns XDP_REDIRECT if it has forwarded the packet of the family, which is at
 * offset l3.
 */
static __always_inline int repeat_xdp(struct xdp_md *ctx, struct cursor frame, __u32 l3, int family, __u32 slot)
{
	__u32 linear = frame.end - frame.at, at = l3 + ip_header(family);
	struct extent x = { .total = linear };
	if (has_frags)
		x.total = bpf_xdp_get_buff_len(ctx);
	struct segment s = {
		.port_flags = x.total == linear ? FLOW_PORT_XDP : FLOW_PORT_XDP_FRAG,
		.tagged = l3 != ETHERNET,
		.pieces = 1,
	};
	struct recipe r = {};
	struct cursor p = { frame.at + l3, frame.end };
	if (!read_segment(p, &x, x.total - l3, family, &s))
		return XDP_PASS;
	__u8 protocol = s.protocol;
	__sum16 *sum = frame.at + at + checksum_at(protocol);
	if (frame.at + at + sizeof(struct udp) > frame.end || (void *)(sum + 1) > frame.end)
		return XDP_PASS;
	if (s.partial && !is_whole(ctx, at, s.length - ip_header(family), *sum))
		return XDP_PASS;
	if (!find(&s, &r))
		return XDP_PASS;
	int action = XDP_REDIRECT;
	if (r.outer) {
		action = encapsulate(ctx, &s, &r, x.total - l3 - s.length);
	} else if (r.vlan || s.tagged) {
		action = put_tagged(ctx, &s, &r);
	} else {
		put_headers(frame.at, at, family, &r);
		if (translates(&r))
			put_checksum(sum, protocol, &r);
	}
	if (action != XDP_REDIRECT)
		return action;
	count_repeated(slot, 1, x.total);
	return bpf_redirect(r.if_index, 0);
}

/*
 * repeat_frame forwards a frame of the interface's own if it can. first has the first 8 bytes
 * of struct interface. Not static: it is verified by itself.
 */
__attribute__((noinline)) int repeat_frame(struct xdp_md *ctx, __u64 first, __u32 flags)
{
	const struct interface in = unpack(first, flags);
	struct cursor frame = { (void *)(long)ctx->data, (void *)(long)ctx->data_end };
	const struct ethernet *eth = frame.at;
	if (frame.at + sizeof(*eth) > frame.end)
		return XDP_PASS;
	__be16 type = eth->type;
	const struct vlan_tag *tag = frame.at + sizeof(*eth);
	if (is_tag(type)) {
		if ((void *)(tag + 1) > frame.end || !is_ours(eth, &in, ctx->ingress_ifindex, vlan_of(type, tag->control)))
			return XDP_PASS;
		switch (tag->type) {
		case bpf_htons(ETH_P_IP):
			return repeat_xdp(ctx, frame, TAGGED, 4, in.slot);
		case bpf_htons(ETH_P_IPV6):
			return repeat_xdp(ctx, frame, TAGGED, 6, in.slot);
		}
		return XDP_PASS;
	}
	if (!is_ours(eth, &in, ctx->ingress_ifindex, 0))
		return XDP_PASS;
	switch (type) {
	case bpf_htons(ETH_P_IP):
		return repeat_xdp(ctx, frame, ETHERNET, 4, in.slot);
	case bpf_htons(ETH_P_IPV6):
		return repeat_xdp(ctx, frame, ETHERNET, 6, in.slot);
	}
	return XDP_PASS;
}

/* steer_frame steers any other frame. Not static: its stack is not needed beside repeat_frame's. */
__attribute__((noinline)) int steer_frame(struct xdp_md *ctx, __u64 first, __u32 flags)
{
	const struct interface in = unpack(first, flags);
	__u32 slot = in.slot;
	struct counters *count = bpf_map_lookup_elem(&packet_counters, &slot);
	if (!count)
		return XDP_PASS;
	struct cursor packet = { (void *)(long)ctx->data, (void *)(long)ctx->data_end };
	return steer(ctx, packet, &in, ctx->ingress_ifindex, count);
}

SEC("xdp.frags")
int weir_repeat(struct xdp_md *ctx)
{
	__u32 ifindex = ctx->ingress_ifindex;
	const struct interface *in = bpf_map_lookup_elem(&interfaces, &ifindex);
	if (!in)
		return XDP_PASS;
	__u64 first = *(const __u64 *)in;
	if (repeats) {
		int action = repeat_frame(ctx, first, in->flags);
		if (action == XDP_REDIRECT || action == XDP_DROP)
			return action;
	}
	return steer_frame(ctx, first, in->flags);
}

/*
 * put_sums updates the checksum of a packet whose headers are written, partial or not: the
 * kernel knows which. It ends all pointers into the packet.
 */
static __always_inline int put_sums(struct __sk_buff *skb, __u32 at, int family, __u8 protocol, __be32 old_ports,
				    const struct recipe *r)
{
	__u64 mangled = protocol == IPPROTO_UDP ? BPF_F_MARK_MANGLED_0 : 0;
	__u64 pseudo = BPF_F_PSEUDO_HDR | mangled | (family == 6 ? ipv6_flag : 0);
	if (bpf_l4_csum_replace(skb, at, 0, le16(r->addr_delta), pseudo))
		return 0;
	return !bpf_l4_csum_replace(skb, at, old_ports, le32(r->ports), mangled | sizeof(old_ports));
}

/*
 * unsummed is the change of the sum of all bytes behind the Ethernet header that no checksum
 * in the packet makes up for: of the hop limit, and of a datagram without a checksum.
 */
static __always_inline __u32 unsummed(int family, int has_checksum, const struct recipe *r)
{
	__u32 delta = family == 6 ? HOP_LIMIT_DELTA : 0;
	if (!has_checksum && translates(r))
		delta += family == 6 ? r->l4_delta : r->l4_delta + (0xffff - r->addr_delta);
	return delta;
}

/*
 * rewrite_skb writes the packet s, whose transport header is at offset at, without an outer header:
 * TCX_REDIRECT, or TCX_DROP. direct: the checksum is written as XDP does.
 */
static __always_inline int rewrite_skb(struct __sk_buff *skb, __u32 at, int family, int direct, const struct segment *s,
				       const struct recipe *r)
{
	struct cursor frame = { (void *)(long)skb->data, (void *)(long)skb->data_end };
	__u8 protocol = s->protocol;
	__sum16 *sum = frame.at + at + checksum_at(protocol);
	if (frame.at + at + sizeof(struct udp) > frame.end || (void *)(sum + 1) > frame.end)
		return TCX_DROP; /* cannot be: it was read */
	__be32 old_ports = *(__be32 *)(frame.at + at);
	__u32 delta = unsummed(family, protocol == IPPROTO_TCP || *sum, r);
	put_macs(frame.at, r->destination, r->source);
	put_packet(frame.at + ETHERNET, frame.at + at, family, r);
	if (translates(r)) {
		if (direct)
			put_checksum(sum, protocol, r);
		else if (!put_sums(skb, at + checksum_at(protocol), family, protocol, old_ports, r))
			return TCX_DROP;
	}
	if (delta)
		bpf_csum_update(skb, le16(fold(delta)));
	return TCX_REDIRECT;
}

/* repeat_tcx returns TCX_REDIRECT if it has forwarded the packet of the family. */
static __always_inline int repeat_tcx(struct __sk_buff *skb, int family, __u32 slot)
{
	struct cursor frame = { (void *)(long)skb->data, (void *)(long)skb->data_end };
	__u32 at = ETHERNET + ip_header(family), pieces = skb->gso_segs;
	struct extent x = { .total = skb->len, .gso_size = skb->gso_size };
	struct segment s = { .tagged = skb->vlan_present != 0, .pieces = pieces ? pieces : 1 };
	struct recipe r = {};
	struct cursor p = { frame.at + ETHERNET, frame.end };
	if (!read_segment(p, &x, x.total - ETHERNET, family, &s))
		return TCX_NEXT;
	if (s.jumbo)
		at += sizeof(struct ipv6_extension);
	/* Without the flag the kernel's sum of all bytes would go wrong. */
	int direct = family == 6 && !ipv6_flag;
	if (direct && s.partial)
		return TCX_NEXT;
	/*
	 * Whoever takes an outer header off need not be a kernel, which alone knows that the sum inside
	 * is partial; and the header has no length for BIG TCP.
	 */
	s.bare = s.partial || s.length + sizeof(struct ipv6) > 0xffff;
	__sum16 *sum = frame.at + at + checksum_at(s.protocol);
	if (frame.at + at + sizeof(struct udp) > frame.end || (void *)(sum + 1) > frame.end)
		return TCX_NEXT;
	if (!find(&s, &r))
		return TCX_NEXT;
	__u16 vlan = r.vlan;
	r.vlan = 0; /* it is none of the frame */
	int action = r.outer ? encapsulate_skb(skb, &s, &r, x.total - ETHERNET - s.length) :
			       rewrite_skb(skb, at, family, direct, &s, &r);
	if (action == TCX_REDIRECT && (s.tagged || vlan))
		action = put_tag(skb, s.tagged, vlan);
	if (action != TCX_REDIRECT)
		return action;
	count_repeated(slot, s.pieces, x.total);
	return bpf_redirect(r.if_index, 0);
}

/* MOST_HEADERS is as far as the headers reach that are read of nearly all packets. */
#define MOST_HEADERS (ETHERNET + sizeof(struct ipv6) + sizeof(struct tcp))

/* in_one_piece makes the first bytes of a packet readable, as many as it has up to most. */
static __always_inline void in_one_piece(struct __sk_buff *skb, __u32 most)
{
	__u32 want = skb->len < most ? skb->len : most;
	if ((void *)(long)skb->data + want > (void *)(long)skb->data_end)
		bpf_skb_pull_data(skb, want);
}

/* MOST_CLASSIFIED is as far as classify reads, but for rare chains of IPv6 extension headers. */
#define MOST_CLASSIFIED 256

/*
 * send_up gives a packet to the packet loop by the slot's interface for that. It is the
 * kernel's if it is not Weir's, and some time after the process has died.
 */
__attribute__((noinline)) int send_up(struct __sk_buff *skb, __u64 first, __u32 flags)
{
	const struct interface in = unpack(first, flags);
	__u32 slot = in.slot;
	struct counters *count = bpf_map_lookup_elem(&packet_counters, &slot);
	if (!count)
		return TCX_NEXT;
	in_one_piece(skb, MOST_CLASSIFIED);
	struct cursor packet = { (void *)(long)skb->data, (void *)(long)skb->data_end };
	__be16 taken = skb->vlan_present ? skb->vlan_proto : 0, control = bpf_htons(skb->vlan_tci);
	__u32 list = 0;
	enum verdict verdict = classify(packet, &in, skb->ifindex, taken, control, &list);
	if (verdict == REDIRECTED) {
		__u32 zero = 0;
		const struct flow_state *state = bpf_map_lookup_elem(&flow_state, &zero);
		__u32 up = state && slot < FLOW_PORTS ? LOAD(state->slots[slot].up) : 0;
		/* The steering program behind it counts the packet, or holds it for the next process. */
		if (up && bpf_ktime_get_ns() < until.follow)
			return bpf_redirect(up, 0);
		verdict = PASS_NO_SOCKET;
	}
	count->packets[verdict]++;
	if (verdict != DENIED)
		return TCX_NEXT;
	count_denied(count, list);
	return TCX_DROP;
}

/* repeat_skb is repeat_frame for TCX. */
__attribute__((noinline)) int repeat_skb(struct __sk_buff *skb, __u64 first, __u32 flags)
{
	const struct interface in = unpack(first, flags);
	const struct ethernet *eth = (void *)(long)skb->data;
	__u32 vlan = skb->vlan_present ? vlan_of(skb->vlan_proto, bpf_htons(skb->vlan_tci)) : 0;
	if ((void *)(eth + 1) > (void *)(long)skb->data_end || !is_ours(eth, &in, skb->ifindex, vlan))
		return TCX_NEXT;
	switch (eth->type) {
	case bpf_htons(ETH_P_IP):
		return repeat_tcx(skb, 4, in.slot);
	case bpf_htons(ETH_P_IPV6):
		return repeat_tcx(skb, 6, in.slot);
	}
	return TCX_NEXT;
}

SEC("tcx/ingress")
int weir_ingress(struct __sk_buff *skb)
{
	__u32 ifindex = skb->ifindex;
	const struct interface *in = bpf_map_lookup_elem(&interfaces, &ifindex);
	if (!in)
		return TCX_NEXT;
	in_one_piece(skb, MOST_HEADERS);
	__u64 first = *(const __u64 *)in;
	int action = repeat_skb(skb, first, in->flags);
	if (action == TCX_REDIRECT || action == TCX_DROP)
		return action;
	return send_up(skb, first, in->flags);
}

char _license[] SEC("license") = "Apache-2.0";
