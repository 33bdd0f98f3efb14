/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The steering program: which packets of an interface are Weir's.
 *
 * It runs in the driver (or the generic hook) for every packet that arrives,
 * before the kernel sees it. It changes no packet, and remembers of them only
 * which fragmented datagrams were Weir's. A packet for a frontend, or for a port
 * from which Weir translates, goes to the AF_XDP socket of its queue; every
 * other packet goes to the kernel as if the program were not there. When in
 * doubt, the kernel gets it.
 *
 * When Weir dies its sockets leave the map `sockets` by themselves. Weir's
 * packets are then dropped for a while, for the next process (hold.h). After
 * that the redirect's fallback, XDP_PASS, gives every packet to the kernel.
 *
 * classify.h says whose a packet is.
 */
#include "steer.h"

SEC("xdp.frags")
int weir_steer(struct xdp_md *ctx)
{
	__u32 ifindex = ctx->ingress_ifindex;
	const struct interface *in = bpf_map_lookup_elem(&interfaces, &ifindex);
	if (!in)
		return XDP_PASS;
	__u32 slot = in->slot;
	struct counters *count = bpf_map_lookup_elem(&packet_counters, &slot);
	if (!count)
		return XDP_PASS;

	struct cursor packet = { (void *)(long)ctx->data, (void *)(long)ctx->data_end };
	return steer(ctx, packet, in, ifindex, count);
}

char _license[] SEC("license") = "Apache-2.0";
