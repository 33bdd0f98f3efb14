/* SPDX-License-Identifier: Apache-2.0 */
/* Places of a key in the index of the flow table, as conntrack computes them. */
#ifndef WEIR_HASH_H
#define WEIR_HASH_H

#include "flowtable.h"

/* Integers of a fixed byte order: the flow table's words are loads of a little-endian machine. */
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define le16(x) ((__u16)(x))
#define le32(x) ((__u32)(x))
#else
#define le16(x) __builtin_bswap16(x)
#define le32(x) __builtin_bswap32(x)
#endif

/* upper_half is that of the product of 64 by 64 bits, for which BPF has no instruction. */
static __always_inline __u64 upper_half(__u64 a, __u64 b)
{
	__u64 a0 = (__u32)a, a1 = a >> 32, b0 = (__u32)b, b1 = b >> 32;
	__u64 middle = a1 * b0 + (a0 * b0 >> 32);
	__u64 carry = a0 * b1 + (__u32)middle;
	return a1 * b1 + (middle >> 32) + (carry >> 32);
}

/* mum folds that product. */
static __always_inline __u64 mum(__u64 a, __u64 b)
{
	return upper_half(a, b) ^ a * b;
}

static __always_inline __u64 hash_of(const __u64 *key, const __u64 *seed, int family)
{
	__u64 h = mum(key[0] ^ seed[0], key[4] ^ seed[1]);
	if (family == 6) {
		h ^= mum(key[1] ^ seed[2], key[2] ^ seed[3]);
		h = mum(key[3] ^ seed[1], h ^ seed[0]);
	}
	return mum(h ^ seed[2], seed[3]);
}

/* bucket_index is hash / 2^64 * buckets. */
static __always_inline __u32 bucket_index(__u64 hash, __u32 buckets)
{
	__u64 low = (__u32)hash, high = hash >> 32;
	return (high * buckets + (low * buckets >> 32)) >> 32;
}

/* next_bucket is the bucket of the second probe. */
static __always_inline __u32 next_bucket(__u64 hash, __u32 first, __u32 buckets)
{
	__u64 step = 1 + bucket_index(hash << 32 | hash >> 32, buckets / FLOW_PROBES);
	return buckets ? (first + step) % buckets : 0;
}

static __always_inline __u32 tag_of(__u64 hash)
{
	__u32 tag = hash & 0xff;
	return tag ? tag : 1;
}

/*
 * matches says in bit 7 of each byte whether that of four tags is tag. Above the first that
 * is it may be wrong in saying so.
 */
static __always_inline __u32 matches(__u32 tags, __u32 tag)
{
	__u32 x = tags ^ tag * 0x01010101;
	return (x - 0x01010101) & ~x & 0x80808080;
}

/*
 * candidates says of all slots of a bucket whether they have the tag: that of tag i in word
 * w is bit 8 * i + w.
 */
static __always_inline __u32 candidates(const volatile __u32 *tags, __u32 tag)
{
	return matches(tags[0], tag) >> 7 | matches(tags[1], tag) >> 6 | matches(tags[2], tag) >> 5;
}

/* slot_of is the slot of the lowest bit in candidates: below it are as many bits as its number. */
static __always_inline __u32 slot_of(__u32 candidates)
{
	__u32 below = (candidates & -candidates) - 1;
	below -= below >> 1 & 0x55555555;
	below = (below & 0x33333333) + (below >> 2 & 0x33333333);
	below = (below + (below >> 4)) & 0x0f0f0f0f;
	below = below * 0x01010101 >> 24;
	return (below & 7) * 4 + (below >> 3);
}

/* fold reduces a one's complement sum of 16-bit words. */
static __always_inline __u32 fold(__u64 sum)
{
	sum = (sum >> 32) + (sum & 0xffffffff);
	sum = (sum >> 16) + (sum & 0xffff);
	sum = (sum >> 16) + (sum & 0xffff);
	return (sum >> 16) + (sum & 0xffff);
}

#endif
