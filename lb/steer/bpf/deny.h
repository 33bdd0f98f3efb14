/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Deny lists: clients whose packets to frontends are dropped here, so that a flood of them costs
 * the packet loop nothing. The set of all lists is the process's memory too; lb/denylist has its
 * layout and the same search. A changed set takes the place of the last one by one store.
 */
#ifndef WEIR_DENY_H
#define WEIR_DENY_H

#include "maps.h"

/* Words of the blocks 0 (IPv4) and 1 (IPv6) of a set. */
#define DENY_LEVELS 0
#define DENY_STARTS 2
#define DENY_MAX_LEVELS 13

/* Words of block 0 that Deny writes: lists, a bit for each. */
#define DENY_NODE 12 /* about all frontends */
#define DENY_KEEP 13 /* whose clients' established flows go on */

struct deny_block {
	__u32 words[16];
};

struct deny_set {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE | BPF_F_INNER_MAP);
	__uint(max_entries, 2);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(struct deny_block));
};

/* The loader takes this map's inner flags away where the kernel does not know them. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 1);
	__type(key, __u32);
	__array(values, struct deny_set);
} deny_sets SEC(".maps");

/* A source. Of IPv4 in lo. */
struct source {
	__u64 hi, lo;
	__u32 family;
};

static __always_inline struct source source4(const struct ipv4 *ip)
{
	return (struct source){ .lo = bpf_ntohl(ip->source), .family = 4 };
}

static __always_inline struct source source6(const struct ipv6 *ip)
{
	return (struct source){
		.hi = (__u64)bpf_ntohl(ip->source[0]) << 32 | bpf_ntohl(ip->source[1]),
		.lo = (__u64)bpf_ntohl(ip->source[2]) << 32 | bpf_ntohl(ip->source[3]),
		.family = 6,
	};
}

/* is_less is a < b. Without a branch: the verifier would follow both ways of each. */
static __always_inline __u64 is_less(__u64 a, __u64 b)
{
	return ((~a & b) | ((~a | b) & (a - b))) >> 63;
}

static __always_inline __u64 is_equal(__u64 a, __u64 b)
{
	return (((a ^ b) | (b - a)) >> 63 | ((a ^ b) | (a - b)) >> 63) ^ 1;
}

/* last_boundary is the number of the last boundary of a block that is not behind the address. */
static __always_inline __u32 last_boundary(const struct deny_block *b, int family, __u64 hi, __u64 lo)
{
	__u32 n = 0;
	if (family == 4) {
#pragma clang loop unroll(full)
		for (int i = 1; i < 16; i++)
			n += 1 - is_less(lo, b->words[i]);
		return n;
	}
#pragma clang loop unroll(full)
	for (int i = 1; i < 4; i++) {
		__u64 at_hi = (__u64)b->words[4 * i] << 32 | b->words[4 * i + 1];
		__u64 at_lo = (__u64)b->words[4 * i + 2] << 32 | b->words[4 * i + 3];
		n += 1 - (is_less(hi, at_hi) | (is_equal(hi, at_hi) & is_less(lo, at_lo)));
	}
	return n;
}

/* find_lists are the lists that have an address. */
static __always_inline __u32 find_lists(int family, __u64 hi, __u64 lo)
{
	__u32 zero = 0, key = family == 6, per = family == 6 ? 4 : 16;
	void *set = bpf_map_lookup_elem(&deny_sets, &zero);
	if (!set)
		return 0;
	const struct deny_block *head = bpf_map_lookup_elem(set, &key);
	if (!head)
		return 0;
	__u32 levels = head->words[DENY_LEVELS], at = 0;
	if (levels == 0 || levels > DENY_MAX_LEVELS)
		return 0;
#pragma clang loop unroll(disable)
	for (__u32 level = 0; level < DENY_MAX_LEVELS; level++) {
		if (level == levels)
			break;
		__u32 start = head->words[DENY_STARTS + level], next = head->words[DENY_STARTS + level + 1];
		if (level > 0 && at >= next - start)
			at = next - start - 1;
		key = start + at;
		const struct deny_block *b = bpf_map_lookup_elem(set, &key);
		if (!b)
			return 0;
		at = at * per + last_boundary(b, family, hi, lo);
	}
	key = head->words[(DENY_STARTS + levels) & 15] + at / 32;
	const struct deny_block *masks = bpf_map_lookup_elem(set, &key);
	if (!masks)
		return 0;
	return masks->words[at / 2 & 15] >> (at % 2 * 16) & 0xffff;
}

/* find_lists4 and find_lists6 are not static: each is verified by itself. */
__attribute__((noinline)) int find_lists4(__u64 lo)
{
	return find_lists(4, 0, lo);
}

__attribute__((noinline)) int find_lists6(__u64 hi, __u64 lo)
{
	return find_lists(6, hi, lo);
}

/*
 * denying_list is the list that denies the source a packet to a frontend, a bit, 0 for none. Lists are
 * those of the frontend. A list that keeps established flows denies packets that begin a flow, which
 * syn says of TCP; of others the packet loop knows.
 */
static __always_inline __u32 denying_list(const struct source *from, __u32 lists, int syn)
{
	__u32 zero = 0;
	void *set = bpf_map_lookup_elem(&deny_sets, &zero);
	if (!set)
		return 0;
	const struct deny_block *head = bpf_map_lookup_elem(set, &zero);
	if (!head)
		return 0;
	lists |= head->words[DENY_NODE];
	if (!lists)
		return 0;
	__u32 keep = head->words[DENY_KEEP];
	__u32 found = from->family == 4 ? find_lists4(from->lo) : find_lists6(from->hi, from->lo);
	found &= lists;
	if (!syn)
		found &= ~keep;
	return found & -found; /* the first counts */
}

/* count_denied counts a packet that a list, a bit, denies. */
static __always_inline void count_denied(struct counters *count, __u32 list)
{
#pragma clang loop unroll(full)
	for (__u32 i = 0; i < DENY_LISTS; i++)
		count->denied[i] += list >> i & 1;
}

#endif
