/* SPDX-License-Identifier: Apache-2.0 */
/* What becomes of an XDP packet that is not forwarded in the kernel. */
#ifndef WEIR_STEER_H
#define WEIR_STEER_H

#include "classify.h"
#include "hold.h"

/* steer gives a packet to the socket of its queue, or to the kernel. */
static __always_inline int steer(struct xdp_md *ctx, struct cursor packet, const struct interface *in, __u32 ifindex,
				 struct counters *count)
{
	__u32 list = 0;
	enum verdict verdict = classify(packet, in, ifindex, 0, 0, &list);
	__u32 slot = in->slot;
	int action = XDP_PASS;
	if (verdict == REDIRECTED) {
		__u32 queue = ctx->rx_queue_index;
		if (queue < QUEUES_PER_SLOT)
			action = bpf_redirect_map(&sockets, slot * QUEUES_PER_SLOT + queue, XDP_PASS);
		if (action != XDP_REDIRECT) {
			verdict = PASS_NO_SOCKET;
			if (is_held(slot, queue)) {
				verdict = HELD;
				action = XDP_DROP;
			}
		}
	}
	if (verdict == DENIED) {
		count_denied(count, list);
		action = XDP_DROP;
	}
	count->packets[verdict]++;
	return action;
}

#endif
