/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The look-up in the flow table, beside the process that writes it. The package comments of
 * conntrack (Generation, The fast path) and lb/flowcache say what may be read and when.
 */
#ifndef WEIR_FIND_H
#define WEIR_FIND_H

#include "classify.h"
#include "flowmaps.h"
#include "hold.h"
#include "order.h"
#include "segment.h"

/* MAX_CANDIDATES of a bucket are compared: so many with the same tag are 1 in 10,000. */
#define MAX_CANDIDATES 3

/* What is to be done with a packet. */
struct recipe {
	__u64 address[4];          /* to write, as in a key: of a tunnel into the outer header */
	__u64 destination, source; /* MAC addresses, the first byte lowest */
	__u32 ports;               /* to write; of a tunnel the upper half of the hash */
	__u32 if_index;
	__u16 addr_delta, l4_delta;
	__u8 mode;
	__u8 outer; /* length of the outer header, 0 without; only that of IPv6 is as long as that */
	__u16 vlan; /* of the tag to push, as in struct flow_port */
};

static __always_inline int outer6(const struct recipe *r)
{
	return r->outer == sizeof(struct ipv6);
}

/* Where in the flow table it stands. */
struct place {
	struct flow_state *state;
	struct flow_bucket *bucket;
	struct flow_entry *entry;
	struct flow_entry *other; /* of the other direction: IPv6 alone, also in an outer header */
	struct flow_adjacency *hop;
	__u32 ref;
	__u32 slot;
	__u32 hash; /* the upper half */
	__u16 generation;
	__u8 followed; /* every segment's numbers are noted, see conntrack.Followed */
	__u64 now; /* as of the last timer interrupt */
};

static __always_inline int same_key(const struct flow_entry *e, const __u64 *key, int family)
{
	if (LOAD(e->key[0]) != key[0] || LOAD(e->key[4]) != key[4])
		return 0;
	return family == 4 ||
	       (LOAD(e->key[1]) == key[1] && LOAD(e->key[2]) == key[2] && LOAD(e->key[3]) == key[3]);
}

static __always_inline struct flow_entry *entry_at(const struct flow_state *state, __u32 number)
{
	__u32 cell = state->entries_at + number;
	return bpf_map_lookup_elem(&flow_table, &cell);
}

/* find_in looks for the key in a bucket. */
static __always_inline int find_in(struct flow_bucket *b, __u32 tag, const __u64 *key, int family, struct place *at)
{
	__u32 left = candidates(b->tag, tag);
	for (int i = 0; i < MAX_CANDIDATES && left; i++) {
		__u32 slot = slot_of(left);
		left &= left - 1;
		if (slot >= FLOW_SLOTS)
			return 0;
		__u32 ref = LOAD(b->slot[slot]);
		if (!ref || ref >= FLOW_PENDING)
			continue;
		struct flow_entry *e = entry_at(at->state, ref - 1);
		if (!e)
			return 0;
		order_loads();
		at->generation = LOAD(e->gen);
		order_loads();
		if (LOAD(b->slot[slot]) != ref)
			continue;
		order_loads();
		if (same_key(e, key, family)) {
			at->bucket = b;
			at->entry = e;
			at->ref = ref;
			at->slot = slot;
			return 1;
		}
	}
	return 0;
}

/* look_up finds the entry of a key. One of a later bucket than the second is left to the loop. */
static __always_inline int look_up(const __u64 *key, int family, struct place *at)
{
	__u32 buckets = at->state->buckets;
	__u64 hash = hash_of(key, at->state->seed, family);
	__u32 index = bucket_index(hash, buckets);
	at->hash = hash >> 32;
	for (int probe = 0; probe < 2; probe++) {
		struct flow_bucket *b = bpf_map_lookup_elem(&flow_index, &index);
		if (!b)
			return 0;
		if (find_in(b, tag_of(hash), key, family, at))
			return 1;
		if (!LOAD(b->over))
			return 0;
		index = next_bucket(hash, index, buckets);
	}
	return 0;
}

/*
 * is_live says whether one of a bucket's entries with the tag has the key. In doubt it does: of so
 * many with the same tag, see MAX_CANDIDATES.
 */
static __always_inline int is_live(struct flow_bucket *b, __u32 tag, const struct flow_state *state, const struct tuple *t)
{
	__u32 left = candidates(b->tag, tag);
	for (int i = 0; i < MAX_CANDIDATES && left; i++) {
		__u32 slot = slot_of(left);
		left &= left - 1;
		if (slot >= FLOW_SLOTS)
			return 1;
		__u32 ref = LOAD(b->slot[slot]);
		if (!ref || ref >= FLOW_PENDING)
			continue;
		struct flow_entry *e = entry_at(state, ref - 1);
		if (!e || same_key(e, t->key, t->family))
			return 1;
	}
	return left != 0;
}

/*
 * has_flow says whether the flow table has an entry with the key of t. A flow is never missed:
 * it is live, in the same slot, from before its first packet is sent to its end, and its entry does
 * not change while it is. The state of the program does not matter, nor whether the process
 * lives. Not static: it is verified by itself.
 */
__attribute__((noinline)) int has_flow(const struct tuple *t)
{
	__u32 zero = 0;
	const struct flow_state *state = bpf_map_lookup_elem(&flow_state, &zero);
	if (!t || !state)
		return 0;
	__u32 buckets = state->buckets;
	__u64 hash = t->family == 4 ? hash_of(t->key, state->seed, 4) : hash_of(t->key, state->seed, 6);
	__u32 first = bucket_index(hash, buckets), index = first;
	for (int probe = 0; probe < FLOW_PROBES; probe++) {
		struct flow_bucket *b = bpf_map_lookup_elem(&flow_index, &index);
		if (!b)
			return 0;
		if (is_live(b, tag_of(hash), state, t))
			return 1;
		if (!LOAD(b->over))
			return 0;
		index = next_bucket(hash, index, buckets);
	}
	return 0;
}

/* is_gone: the bit of a number is set. One without a bit is not gone. */
static __always_inline int is_gone(__u32 word, __u32 number)
{
	const __u64 *bits = bpf_map_lookup_elem(&flow_gone, &word);
	return bits && LOAD(*bits) >> number % 64 & 1;
}

/* conn_at reads where the connection is: two are in a cell. */
static __always_inline struct flow_conn *conn_at(const struct place *at)
{
	__u32 number = (at->ref - 1) / 2, cell = at->state->conns_at + number / 2;
	struct flow_conn *both = bpf_map_lookup_elem(&flow_table, &cell);
	return both ? both + number % 2 : 0;
}

/* is_exception: the endpoint of the connection is gone, or its Service. */
static __always_inline int is_exception(const struct place *at)
{
	const struct flow_conn *c = conn_at(at);
	if (!c)
		return 1;
	__u32 endpoint = LOAD(c->endpoint_id), service = LOAD(c->service_id), services_at = at->state->services_at;
	return (endpoint / 64 < services_at && is_gone(endpoint / 64, endpoint)) ||
	       is_gone(services_at + service / 64, service);
}

/* next_hop_word is where the entry's next hop is, see conntrack.Table.NextHop. */
static __always_inline __u64 *next_hop_word(const struct place *at, int family, __u8 mode)
{
	if (family == 4)
		return &at->entry->key[1];
	return mode >= FLOW_MODE_L2DSR ? &at->other->addr4 : &at->entry->addr4;
}

/* is_stamp: stamp, the upper half of a next-hop word, is the adjacency's. */
static __always_inline int is_stamp(const struct flow_adjacency *hop, __u32 stamp)
{
	return ((LOAD(hop->stamp) ^ stamp) & ~(__u32)(FLOW_FOLLOWED >> 32)) == 0;
}

/* leads_on reads the next hop of word; 0 if the packet cannot be sent there now. */
static __always_inline int leads_on(__u64 word, const struct segment *s, struct place *at, struct recipe *r)
{
	__u32 number = word & 0xffff, stamp = word >> 32, mtu = (__u32)word >> 16;
	struct flow_adjacency *hop = bpf_map_lookup_elem(&flow_next_hops, &number);
	if (!stamp || !hop || !is_stamp(hop, stamp))
		return 0;
	at->followed = LOAD(hop->stamp) != stamp;
	order_loads();
	at->hop = hop;
	r->destination = LOAD(hop->dst);
	r->source = LOAD(hop->src);
	__u32 largest = s->largest + r->outer;
	if ((__u8)(r->destination >> 48) != FLOW_ADJACENCY_VALID || largest > mtu || largest > LOAD(hop->mtu))
		return 0;
	__u32 port = r->source >> 48;
	if (port >= FLOW_PORTS)
		return 0;
	union {
		__u64 word;
		struct flow_port port;
	} out = { .word = LOAD(*(const __u64 *)&at->state->ports[port]) };
	r->if_index = out.port.if_index;
	r->vlan = out.port.vlan;
	return r->if_index && (out.port.flags & s->port_flags) == s->port_flags;
}

/* read_recipe reads the rest of the entry. */
static __always_inline void read_recipe(const struct place *at, int family, struct recipe *r)
{
	const struct flow_entry *e = at->entry, *other = at->other;
	r->ports = r->outer ? at->hash : LOAD(e->new_ports);
	r->addr_delta = LOAD(e->addr_delta);
	r->l4_delta = LOAD(e->l4_delta);
	stall_for_test();
	if (r->outer ? !outer6(r) : family == 4) {
		r->address[0] = LOAD(e->addr4);
		return;
	}
	r->address[0] = LOAD(other->key[2]);
	r->address[1] = LOAD(other->key[3]);
	r->address[2] = LOAD(other->key[0]);
	r->address[3] = LOAD(other->key[1]);
}

/* span is the absolute distance of two sequence numbers, plus one. */
static __always_inline __u64 span(__u32 d)
{
	return (__u64)((__s32)d < 0 ? -d : d) + 1;
}

/* sample notes the numbers of a segment, as conntrack.Conn.Sample. */
static __always_inline void sample(const struct segment *s, const struct place *at)
{
	struct flow_conn *c = conn_at(at);
	if (!c)
		return;
	int forward = at->ref & 1;
	__u32 *own = forward ? &c->client_next : &c->endpoint_next;
	__u32 *other = forward ? &c->endpoint_next : &c->client_next;
	__u32 sent = LOAD(*own), acknowledged = LOAD(*other);
	if (span(s->sequence - sent) * span(s->acknowledgment - acknowledged) > FLOW_NEARBY)
		return;
	/* Not in place of the number of a FIN that a worker has seen since. */
	if ((__s32)(s->end - sent) > 0)
		__sync_val_compare_and_swap(own, sent, s->end);
	if ((__s32)(s->acknowledgment - acknowledged) > 0)
		__sync_val_compare_and_swap(other, acknowledged, s->acknowledgment);
}

/* Set by the loader: connections are recorded, and flow_counts has an element for each entry. */
const volatile __u8 counts = 0;

/* count_packet counts the packet for its direction of the connection. */
static __always_inline void count_packet(const struct segment *s, const struct place *at)
{
	__u32 number = at->ref - 1;
	struct flow_count *c = bpf_map_lookup_elem(&flow_counts, &number);
	if (c) {
		__sync_fetch_and_add(&c->packets, s->pieces);
		__sync_fetch_and_add(&c->bytes, s->length);
	}
}

/* note keeps what the packet loop would have noted. */
static __always_inline void note(const struct segment *s, const struct place *at)
{
	__u32 tick = (at->now - at->state->tick0) / FLOW_TICK_NS;
	int first = LOAD(at->entry->seen) != tick;
	if (first)
		STORE(at->entry->seen, tick);
	if (LOAD(at->hop->used) != tick)
		STORE(at->hop->used, tick);
	if (s->acknowledges && (first || at->followed || (s->sequence & (FLOW_MILESTONE - 1)) < s->length))
		sample(s, at);
	if (counts)
		count_packet(s, at);
}

/*
 * read_mode says whether a program can forward in the mode of the entry. The checksum of GUE
 * over IPv6 is over the whole packet: that is left to the packet loop.
 */
static __always_inline int read_mode(const struct segment *s, const struct flow_entry *e, struct recipe *r)
{
	r->mode = LOAD(e->mode);
	if (r->mode < FLOW_MODE_NAT)
		return 0;
	if (r->mode <= FLOW_MODE_L2DSR)
		return 1;
	int six = LOAD(e->flags) & FLOW_FLAG_OUTER6;
	if (s->bare || r->mode > FLOW_MODE_GUE || (six && r->mode == FLOW_MODE_GUE))
		return 0;
	r->outer = six ? sizeof(struct ipv6) : sizeof(struct ipv4);
	if (r->mode == FLOW_MODE_GUE)
		r->outer += sizeof(struct gue);
	return 1;
}

static __always_inline int find_family(const struct segment *s, int family, struct place *at, struct recipe *r)
{
	if (!look_up(s->key, family, at))
		return 0;
	const struct flow_entry *e = at->entry;
	if (!read_mode(s, e, r))
		return 0;
	at->other = at->entry; /* so that the verifier sees a pointer wherever it is not used */
	if (family == 6 || outer6(r)) {
		at->other = entry_at(at->state, (at->ref - 1) ^ 1);
		if (!at->other)
			return 0;
	}
	const __u64 *word_at = next_hop_word(at, family, r->mode);
	__u64 word = LOAD(*word_at);
	if (!leads_on(word, s, at, r))
		return 0;
	if (s->quic_long && LOAD(e->flags) & FLOW_FLAG_WATCHED && r->mode < FLOW_MODE_L2DSR)
		return 0;
	if (LOAD(at->state->exceptions) && is_exception(at))
		return 0;
	read_recipe(at, family, r);
	/* What was read is this flow's if nothing has changed meanwhile. */
	order_loads();
	return LOAD(at->bucket->slot[at->slot]) == at->ref && LOAD(*word_at) == word &&
	       LOAD(e->gen) == at->generation && is_stamp(at->hop, word >> 32);
}

/*
 * may_repeat: a process follows what changes the recipes, or may do so soon. Without one they
 * would outlive neighbors, routes and endpoints.
 */
static __always_inline int may_repeat(const struct flow_state *state, __u64 now)
{
	__u64 from = LOAD(state->from);
	return from && now >= from && now < until.follow;
}

/*
 * find fills r with what is to be done with the packet s, and notes the packet in the flow
 * table; it returns 0 when only the packet loop knows. A function that is not static is
 * verified once, not wherever it is called.
 */
__attribute__((noinline)) int find(const struct segment *s, struct recipe *r)
{
	__u32 zero = 0;
	struct place at = { .state = bpf_map_lookup_elem(&flow_state, &zero) };
	if (!s || !r || !at.state)
		return 0;
	at.now = bpf_ktime_get_coarse_ns();
	if (!may_repeat(at.state, at.now))
		return 0;
	if (s->family == 4) {
		if (!find_family(s, 4, &at, r))
			return 0;
	} else if (!find_family(s, 6, &at, r)) {
		return 0;
	}
	note(s, &at);
	return 1;
}

/* count_repeated counts a packet of length bytes that is forwarded here. */
static __always_inline void count_repeated(__u32 slot, __u32 packets, __u32 length)
{
	struct flow_repeated *count = bpf_map_lookup_elem(&flow_repeated, &slot);
	if (count) {
		count->packets += packets;
		count->bytes += length;
	}
}

#endif
