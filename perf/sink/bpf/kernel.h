/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The parts of the kernel's interface that sink and generator use, spelled out
 * as in lb/steer/bpf, and what the two share.
 */
#ifndef WEIR_PERF_KERNEL_H
#define WEIR_PERF_KERNEL_H

typedef unsigned char __u8;
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef unsigned long long __u64;
typedef signed char __s8;
typedef short __s16;
typedef int __s32;
typedef long long __s64;
typedef __u16 __be16;
typedef __u32 __be32;
typedef __u64 __be64;
typedef __u16 __sum16;
typedef __u32 __wsum;

enum bpf_map_type {
	BPF_MAP_TYPE_ARRAY = 2,
	BPF_MAP_TYPE_PERCPU_ARRAY = 6,
};

enum xdp_action {
	XDP_ABORTED = 0,
	XDP_DROP,
};

enum tcx_action {
	TCX_NEXT = -1,
	TCX_DROP = 2,
};

struct xdp_md {
	__u32 data;
	__u32 data_end;
};

/* As far as it is used. */
struct __sk_buff {
	__u32 len;
	__u32 unused[9];
	__u32 ifindex;
	__u32 unused2[8];
	__u32 data;
	__u32 data_end;
};

#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>

#define ETH_P_IP 0x0800
#define IPPROTO_UDP 17

/* Headers as they are on the wire; fields in network byte order. */
struct ethernet {
	__u8 destination[6];
	__u8 source[6];
	__be16 type;
} __attribute__((packed));

struct ipv4 {
	__u8 version_ihl;
	__u8 tos;
	__be16 length;
	__be16 id;
	__be16 fragment;
	__u8 ttl;
	__u8 protocol;
	__sum16 checksum;
	__be32 source;
	__be32 destination;
};

struct udp {
	__be16 source;
	__be16 destination;
	__be16 length;
	__sum16 checksum;
};

/* What a sink has counted, per CPU. */
struct count {
	__u64 packets;
	__u64 bytes; /* of Ethernet frames, without the frame check sequence */
};

#endif
