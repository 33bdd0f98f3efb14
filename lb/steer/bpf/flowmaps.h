/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The maps of the flow table. lb/flowcache makes them and says what they are; the loader
 * puts those in the place of these, which have a single element.
 */
#ifndef WEIR_FLOWMAPS_H
#define WEIR_FLOWMAPS_H

#include "flowtable.h"

struct flow_cell {
	__u64 words[8];
};

#define FLOW_ARRAY(name, element) \
	struct { \
		__uint(type, BPF_MAP_TYPE_ARRAY); \
		__uint(map_flags, BPF_F_MMAPABLE); \
		__uint(max_entries, 1); \
		__type(key, __u32); \
		__type(value, element); \
	} name SEC(".maps")

FLOW_ARRAY(flow_table, struct flow_cell); /* struct flow_conn, struct flow_entry */
FLOW_ARRAY(flow_index, struct flow_bucket);
FLOW_ARRAY(flow_next_hops, struct flow_adjacency);
FLOW_ARRAY(flow_state, struct flow_state);
FLOW_ARRAY(flow_gone, __u64);
FLOW_ARRAY(flow_counts, struct flow_count); /* by entry; a single element if !counts */

/* By slot. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, FLOW_PORTS);
	__type(key, __u32);
	__type(value, struct flow_repeated);
} flow_repeated SEC(".maps");

#endif
