/* SPDX-License-Identifier: Apache-2.0 */
/* VLANs of an interface of which only some are Weir's. */
#ifndef WEIR_VLAN_H
#define WEIR_VLAN_H

#include "maps.h"

#define MAX_VLANS 4096
#define VLAN_ID   0x0fff

struct vlan_key {
	__u32 ifindex;
	__u32 vlan; /* EtherType of the tag << 16 | number; 0: untagged */
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

/*
 * vlan_of is what tells VLANs apart: 802.1Q's number 100 and 802.1ad's are two
 * networks. A priority tag is of the untagged one.
 */
static __always_inline __u32 vlan_of(__be16 type, __be16 control)
{
	__u32 id = bpf_ntohs(control) & VLAN_ID;
	return id ? (__u32)bpf_ntohs(type) << 16 | id : 0;
}

/* is_of_vlan: Weir is attached to this VLAN, and the packet is for its address. */
static __always_inline enum verdict is_of_vlan(__u32 ifindex, __u32 vlan, const struct ethernet *eth)
{
	struct vlan_key key = { .ifindex = ifindex, .vlan = vlan };
	const struct vlan *attached = bpf_map_lookup_elem(&vlans, &key);
	if (!attached)
		return PASS_VLAN;
	return is_for(eth, attached->mac) ? REDIRECTED : PASS_OTHER_MAC;
}

#endif
