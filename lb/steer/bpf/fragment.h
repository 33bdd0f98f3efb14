/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fragments. Only the first of a datagram carries ports, so the program
 * remembers which datagrams' first fragments were Weir's and sends the later
 * ones after them. This is all that it keeps of packets.
 */
#ifndef WEIR_FRAGMENT_H
#define WEIR_FRAGMENT_H

#include "packet.h"

#define MAX_FRAGMENTED 16384 /* datagrams remembered */

/*
 * For so long, in ns: what Linux waits for the fragments of a datagram (net.ipv4.
 * ipfrag_time). Its identification may mean another one afterwards.
 */
#define FRAGMENTED_LIFE 30000000000ULL

/* What a datagram's fragments have in common (RFC 791, RFC 8200 section 4.5). */
struct datagram_key {
	__be32 source[4]; /* IPv4 in the first, the rest 0 */
	__be32 destination[4];
	__be32 id;
	__u8 protocol; /* 0 in IPv6: every fragment may have another */
	__u8 family;
	__u16 zero;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, MAX_FRAGMENTED);
	__type(key, struct datagram_key);
	__type(value, __u64); /* when its first fragment came, in ns */
} fragmented SEC(".maps");

/* remember notes whether the first fragment of a datagram is Weir's. */
static __always_inline void remember(const struct datagram_key *k, int ours)
{
	if (ours) {
		__u64 now = bpf_ktime_get_ns();
		bpf_map_update_elem(&fragmented, k, &now, BPF_ANY);
		return;
	}
	/* An older datagram may have had the same identification. */
	bpf_map_delete_elem(&fragmented, k);
}

/* remembered says whether the first fragment was Weir's. */
static __always_inline int remembered(const struct datagram_key *k)
{
	const __u64 *since = bpf_map_lookup_elem(&fragmented, k);
	return since && bpf_ktime_get_ns() - *since < FRAGMENTED_LIFE;
}

#endif
