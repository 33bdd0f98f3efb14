/* SPDX-License-Identifier: Apache-2.0 */
/* What the program is told, and what it counts. */
#ifndef WEIR_MAPS_H
#define WEIR_MAPS_H

#include "packet.h"

/* A socket's place in the map is slot * QUEUES_PER_SLOT + queue. */
#define MAX_SLOTS 64
#define QUEUES_PER_SLOT 64

/* What became of a packet. Counted per slot; names in counters.go. */
enum verdict {
	REDIRECTED,
	PASS_NO_SOCKET,       /* Weir's, but no socket on this queue */
	PASS_OTHER_MAC,       /* broadcast, multicast, another host's */
	PASS_VLAN,            /* of a VLAN that is not attached, or more tags than one */
	PASS_OTHER_ETHERTYPE, /* ARP, LLDP, ... */
	PASS_MALFORMED,       /* headers cut short or impossible */
	PASS_FRAGMENT,        /* later fragment, its first not seen or not Weir's */
	PASS_EXTENSION,       /* IPv6 headers that hide what is behind them, or too many */
	PASS_OTHER_PROTOCOL,  /* neither TCP, UDP nor SCTP, nor ICMP that may be Weir's */
	PASS_NO_MATCH,        /* of the host itself */
	HELD,                 /* Weir's, dropped for the next process */
	DENIED,               /* to a frontend, of a client on a deny list */
	VERDICTS,
};

/* An interface that Weir is attached to. */
struct interface {
	__u8 mac[6]; /* destination address of packets that may be Weir's */
	__u16 slot;
	__u32 flags;
};

/* Flags of an interface. */
#define INTERFACE_ALL   1 /* the host veth: everything that is routed to it is Weir's */
#define INTERFACE_VLANS 2 /* Weir's are its VLANs that stand in `vlans`, and no others */

struct frontend_key {
	__be32 address[4]; /* IPv4 in the first, the rest 0 */
	__be16 port;
	__u8 protocol;
	__u8 family; /* 4 or 6 */
};

/* What is known of a frontend. */
struct frontend {
	__u32 flags;
	__u32 lists; /* deny lists, a bit for each, beside those about all frontends */
};

/* Flags of a frontend; the others mean nothing to the program. */
#define FRONTEND_FLOWS_ONLY (1u << 31) /* a SYN to it is the host's */

/* Ranges of ports of an address and protocol: at most so many. */
#define MAX_RANGES 8

/* A frontend with more ports than one, in host byte order, both inclusive. last 0: none. */
struct frontend_range {
	__u16 first;
	__u16 last;
	__u32 flags; /* as of a frontend */
};

struct frontend_ranges {
	struct frontend_range range[MAX_RANGES];
};

struct address_key {
	__be32 address[4];
	__u32 family; /* 4 or 6 */
};

/*
 * Of an address from which Weir translates: the ports at which every packet is Weir's, in host byte
 * order, both inclusive. Programs that read the flow table take those of flows at any port, too.
 */
struct port_range {
	__u16 low;
	__u16 high;
};

#define DENY_LISTS 16

struct counters {
	__u64 packets[VERDICTS];
	__u64 denied[DENY_LISTS]; /* of DENIED, by deny list */
};

/* By interface index. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_SLOTS);
	__type(key, __u32);
	__type(value, struct interface);
} interfaces SEC(".maps");

/* max_entries of these three is set by the loader. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__type(key, struct frontend_key);
	__type(value, struct frontend);
} frontends SEC(".maps");

/* The key has port 0. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, struct frontend_key);
	__type(value, struct frontend_ranges);
} ranges SEC(".maps");

/* Its element is not 0 when there has been a range: an array costs other packets less than `ranges`. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} any_range SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, struct address_key);
	__type(value, struct port_range);
} snat SEC(".maps");

/* Addresses that serve frontends and that the node does not hold. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__type(key, struct address_key);
	__type(value, __u32); /* means nothing */
} vips SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_XSKMAP);
	__uint(max_entries, MAX_SLOTS * QUEUES_PER_SLOT);
	__type(key, __u32);
	__type(value, __u32);
} sockets SEC(".maps");

/* By slot. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, MAX_SLOTS);
	__type(key, __u32);
	__type(value, struct counters);
} packet_counters SEC(".maps");

#endif
