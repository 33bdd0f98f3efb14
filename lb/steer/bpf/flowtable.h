/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The flow table as the kernel sees it. Written by go generate ./lb/flowcache from the Go
 * types; the package comment there says what may be read and when.
 */
#ifndef WEIR_FLOWTABLE_H
#define WEIR_FLOWTABLE_H

#include "kernel.h"

#define FLOW_SLOTS 12 /* of a bucket */
#define FLOW_PENDING 2147483648ULL /* bit of a slot whose entry is not live */
#define FLOW_PROBES 8 /* buckets in which a key may be */
#define FLOW_TICK_NS 62500000 /* nanoseconds of a tick */
#define FLOW_MODE_NAT 1
#define FLOW_MODE_DNAT 2
#define FLOW_MODE_L2DSR 3
#define FLOW_MODE_IPIP 4
#define FLOW_MODE_GUE 5
#define FLOW_FLAG_OUTER6 1
#define FLOW_FLAG_WATCHED 2
#define FLOW_MILESTONE 65536 /* bytes: see Milestone */
#define FLOW_NEARBY 1099511627776ULL /* see Conn.Sample */
#define FLOW_FOLLOWED 9223372036854775808ULL /* see Followed */
#define FLOW_ADJACENCY_VALID 2 /* state, in bits 48 to 55 of dst */
#define FLOW_PORTS 64
#define FLOW_PORT_XDP 1 /* an XDP program may redirect there */
#define FLOW_PORT_XDP_FRAG 2 /* and packets of several buffers */
#define FLOW_VLAN_8021AD 32768 /* bit of flow_port.vlan */

struct flow_entry {
	__u64 key[5];
	__u64 addr4;
	__u32 new_ports;
	__u16 addr_delta;
	__u16 l4_delta;
	__u8 mode;
	__u8 flags;
	__u16 gen;
	__u32 seen;
};
_Static_assert(__builtin_offsetof(struct flow_entry, key) == 0, "layout");
_Static_assert(__builtin_offsetof(struct flow_entry, addr4) == 40, "layout");
_Static_assert(__builtin_offsetof(struct flow_entry, new_ports) == 48, "layout");
_Static_assert(__builtin_offsetof(struct flow_entry, addr_delta) == 52, "layout");
_Static_assert(__builtin_offsetof(struct flow_entry, l4_delta) == 54, "layout");
_Static_assert(__builtin_offsetof(struct flow_entry, mode) == 56, "layout");
_Static_assert(__builtin_offsetof(struct flow_entry, flags) == 57, "layout");
_Static_assert(__builtin_offsetof(struct flow_entry, gen) == 58, "layout");
_Static_assert(__builtin_offsetof(struct flow_entry, seen) == 60, "layout");
_Static_assert(sizeof(struct flow_entry) == 64, "layout");

struct flow_conn {
	__u8 unused1[8];
	__u32 endpoint_id;
	__u32 service_id;
	__u8 unused2[4];
	__u32 client_next;
	__u32 endpoint_next;
	__u8 unused3[4];
};
_Static_assert(__builtin_offsetof(struct flow_conn, endpoint_id) == 8, "layout");
_Static_assert(__builtin_offsetof(struct flow_conn, service_id) == 12, "layout");
_Static_assert(__builtin_offsetof(struct flow_conn, client_next) == 20, "layout");
_Static_assert(__builtin_offsetof(struct flow_conn, endpoint_next) == 24, "layout");
_Static_assert(sizeof(struct flow_conn) == 32, "layout");

struct flow_bucket {
	__u32 tag[3];
	__u32 over;
	__u32 slot[12];
};
_Static_assert(__builtin_offsetof(struct flow_bucket, tag) == 0, "layout");
_Static_assert(__builtin_offsetof(struct flow_bucket, over) == 12, "layout");
_Static_assert(__builtin_offsetof(struct flow_bucket, slot) == 16, "layout");
_Static_assert(sizeof(struct flow_bucket) == 64, "layout");

struct flow_adjacency {
	__u64 dst;
	__u64 src;
	__u32 mtu;
	__u32 used;
	__u8 unused1[20];
	__u32 stamp;
	__u8 unused2[16];
};
_Static_assert(__builtin_offsetof(struct flow_adjacency, dst) == 0, "layout");
_Static_assert(__builtin_offsetof(struct flow_adjacency, src) == 8, "layout");
_Static_assert(__builtin_offsetof(struct flow_adjacency, mtu) == 16, "layout");
_Static_assert(__builtin_offsetof(struct flow_adjacency, used) == 20, "layout");
_Static_assert(__builtin_offsetof(struct flow_adjacency, stamp) == 44, "layout");
_Static_assert(sizeof(struct flow_adjacency) == 64, "layout");

struct flow_port {
	__u32 if_index;
	__u16 flags;
	__u16 vlan;
};
_Static_assert(__builtin_offsetof(struct flow_port, if_index) == 0, "layout");
_Static_assert(__builtin_offsetof(struct flow_port, flags) == 4, "layout");
_Static_assert(__builtin_offsetof(struct flow_port, vlan) == 6, "layout");
_Static_assert(sizeof(struct flow_port) == 8, "layout");

struct flow_slot {
	__u32 up;
};
_Static_assert(__builtin_offsetof(struct flow_slot, up) == 0, "layout");
_Static_assert(sizeof(struct flow_slot) == 4, "layout");

struct flow_state {
	__u64 seed[4];
	__u64 tick0;
	__u32 buckets;
	__u32 entries_at;
	__u64 from;
	__u32 exceptions;
	__u8 unused1[4];
	__u32 conns_at;
	__u32 services_at;
	__u8 unused2[56];
	struct flow_port ports[64];
	struct flow_slot slots[64];
};
_Static_assert(__builtin_offsetof(struct flow_state, seed) == 0, "layout");
_Static_assert(__builtin_offsetof(struct flow_state, tick0) == 32, "layout");
_Static_assert(__builtin_offsetof(struct flow_state, buckets) == 40, "layout");
_Static_assert(__builtin_offsetof(struct flow_state, entries_at) == 44, "layout");
_Static_assert(__builtin_offsetof(struct flow_state, from) == 48, "layout");
_Static_assert(__builtin_offsetof(struct flow_state, exceptions) == 56, "layout");
_Static_assert(__builtin_offsetof(struct flow_state, conns_at) == 64, "layout");
_Static_assert(__builtin_offsetof(struct flow_state, services_at) == 68, "layout");
_Static_assert(__builtin_offsetof(struct flow_state, ports) == 128, "layout");
_Static_assert(__builtin_offsetof(struct flow_state, slots) == 640, "layout");
_Static_assert(sizeof(struct flow_state) == 896, "layout");

struct flow_repeated {
	__u64 packets;
	__u64 bytes;
};
_Static_assert(__builtin_offsetof(struct flow_repeated, packets) == 0, "layout");
_Static_assert(__builtin_offsetof(struct flow_repeated, bytes) == 8, "layout");
_Static_assert(sizeof(struct flow_repeated) == 16, "layout");

struct flow_count {
	__u64 packets;
	__u64 bytes;
};
_Static_assert(__builtin_offsetof(struct flow_count, packets) == 0, "layout");
_Static_assert(__builtin_offsetof(struct flow_count, bytes) == 8, "layout");
_Static_assert(sizeof(struct flow_count) == 16, "layout");

#endif
