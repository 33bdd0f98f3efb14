/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What happens to Weir's packets while no process is there.
 *
 * A packet of a connection that the process has translated must not reach the
 * kernel: it would answer with a RST, and the connection would end although the
 * next process could continue it. So such packets are dropped for a while, and
 * both ends send them again.
 */
#ifndef WEIR_HOLD_H
#define WEIR_HOLD_H

#include "maps.h"

/*
 * until has ends, in nanoseconds of CLOCK_MONOTONIC. The process moves them on
 * together while it lives, and the next process those of the last one's programs.
 */
volatile struct {
	__u64 hold;   /* of the hold: 0 holds nothing */
	__u64 follow; /* of the use of recipes, and of packets on their way to the process */
} until;

/*
 * The queues of each slot for which the process has a socket. A queue without
 * one is the kernel's by intention.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_SLOTS);
	__type(key, __u32);
	__type(value, __u64);
} held_queues SEC(".maps");

/* is_held: there was a socket for the queue, and may soon be one again. */
static __always_inline int is_held(__u32 slot, __u32 queue)
{
	const __u64 *queues = bpf_map_lookup_elem(&held_queues, &slot);
	if (!queues || queue >= QUEUES_PER_SLOT || !(*queues >> queue & 1))
		return 0;
	return bpf_ktime_get_ns() < until.hold;
}

#endif
