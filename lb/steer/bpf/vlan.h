/* SPDX-License-Identifier: Apache-2.0 */
/* VLANs of an interface of which only some are Weir's. */
#ifndef WEIR_VLAN_H
#define WEIR_VLAN_H

#include "maps.h"

#define MAX_VLANS 4096
#define VLAN_ID   0x0fff

struct vlan_key {
	__u32 ifindex;
	__u32 id; /* 0: untagged */
};

struct vlan {
	__u8 mac[6]; /* as in struct interface */
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_VLANS);
	__type(key, struct vlan_key);
	__type(value, struct vlan);
} vlans SEC(".maps");

static __always_inline int is_for(const struct ethernet *eth, const __u8 *mac)
{
	/* All differences or-ed together: one branch instead of six. */
	__u8 differ = 0;
#pragma unroll
	for (int i = 0; i < 6; i++)
		differ |= eth->destination[i] ^ mac[i];
	return !differ;
}

/* is_of_vlan: Weir is attached to this VLAN, and the packet is for its address. */
static __always_inline enum verdict is_of_vlan(__u32 ifindex, __u16 id, const struct ethernet *eth)
{
	struct vlan_key key = { .ifindex = ifindex, .id = id };
	const struct vlan *vlan = bpf_map_lookup_elem(&vlans, &key);
	if (!vlan)
		return PASS_VLAN;
	return is_for(eth, vlan->mac) ? REDIRECTED : PASS_OTHER_MAC;
}

#endif
