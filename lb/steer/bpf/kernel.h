/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The parts of the kernel's interface that the steering program uses. They are
 * spelled out here, not taken from the build machine's kernel headers, so that
 * the compiled program depends on nothing but the compiler and libbpf's
 * bpf_helpers.h.
 */
#ifndef WEIR_KERNEL_H
#define WEIR_KERNEL_H

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

enum { BPF_ANY = 0 };

enum { BPF_F_MMAPABLE = 1 << 10 };

enum bpf_map_type {
	BPF_MAP_TYPE_HASH = 1,
	BPF_MAP_TYPE_ARRAY = 2,
	BPF_MAP_TYPE_PERCPU_ARRAY = 6,
	BPF_MAP_TYPE_LRU_HASH = 9,
	BPF_MAP_TYPE_XSKMAP = 17,
};

enum xdp_action {
	XDP_ABORTED = 0,
	XDP_DROP,
	XDP_PASS,
	XDP_TX,
	XDP_REDIRECT,
};

struct xdp_md {
	__u32 data;
	__u32 data_end;
	__u32 data_meta;
	__u32 ingress_ifindex;
	__u32 rx_queue_index;
	__u32 egress_ifindex;
};

#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>

#endif
