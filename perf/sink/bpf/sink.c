/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sink: counts UDP packets that reach an interface and drops them, or
 * sends them back to where they came from. Everything else goes to the kernel.
 * It is attached to TCX ingress, so that it costs the receiving side as little
 * as a program behind the driver can.
 */
#include "kernel.h"

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct count);
} counts SEC(".maps");

/* The headers of one packet in 64k, for whoever wants to see what arrives. */
struct sample {
	__u8 header[sizeof(struct ethernet) + sizeof(struct ipv4) + sizeof(struct udp)];
	__u8 pad[6];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct sample);
} samples SEC(".maps");

/* Constant from the time of loading. */
const volatile __u32 reflect;

static __always_inline int send_back(struct __sk_buff *skb, struct ethernet *eth, struct ipv4 *ip, struct udp *udp)
{
	__u8 mac[6];
	__builtin_memcpy(mac, eth->destination, 6);
	__builtin_memcpy(eth->destination, eth->source, 6);
	__builtin_memcpy(eth->source, mac, 6);
	/* Swapping words of a checksummed range leaves its checksum as it is. */
	__be32 address = ip->source;
	ip->source = ip->destination;
	ip->destination = address;
	__be16 port = udp->source;
	udp->source = udp->destination;
	udp->destination = port;
	return bpf_redirect(skb->ifindex, 0);
}

SEC("tcx/ingress")
int sink(struct __sk_buff *skb)
{
	struct ethernet *eth = (void *)(long)skb->data;
	struct ipv4 *ip = (void *)(eth + 1);
	struct udp *udp = (void *)(ip + 1);
	__u32 zero = 0;

	if ((void *)(udp + 1) > (void *)(long)skb->data_end)
		return TCX_NEXT;
	if (eth->type != bpf_htons(ETH_P_IP) || ip->version_ihl != 0x45 || ip->protocol != IPPROTO_UDP)
		return TCX_NEXT;
	struct count *count = bpf_map_lookup_elem(&counts, &zero);
	if (!count)
		return TCX_NEXT;
	if ((count->packets & 0xffff) == 0) {
		struct sample *sample = bpf_map_lookup_elem(&samples, &zero);
		if (sample)
			__builtin_memcpy(sample->header, eth, sizeof(sample->header));
	}
	count->packets++;
	count->bytes += skb->len;
	if (reflect)
		return send_back(skb, eth, ip, udp);
	return TCX_DROP;
}

char _license[] SEC("license") = "Apache-2.0";
