/* SPDX-License-Identifier: Apache-2.0 */
/* Packet headers as they are on the wire; fields in network byte order. */
#ifndef WEIR_PACKET_H
#define WEIR_PACKET_H

#include "kernel.h"

#define ETH_P_IP    0x0800
#define ETH_P_IPV6  0x86DD
#define ETH_P_8021Q 0x8100
#define ETH_P_8021AD 0x88A8

#define IPPROTO_HOPOPTS  0
#define IPPROTO_ICMP     1
#define IPPROTO_IPIP     4
#define IPPROTO_TCP      6
#define IPPROTO_UDP      17
#define IPPROTO_IPV6     41
#define IPPROTO_ROUTING  43
#define IPPROTO_FRAGMENT 44
#define IPPROTO_AH       51
#define IPPROTO_ICMPV6   58
#define IPPROTO_DSTOPTS  60
#define IPPROTO_SCTP     132
#define IPPROTO_MH       135

#define IP_MORE_FRAGMENTS  0x2000
#define IP_FRAGMENT_OFFSET 0x1fff
#define IPV6_FRAGMENT_OFFSET 0xfff8
#define IPV6_MORE_FRAGMENTS  1

/* ICMP (RFC 792): echo request and the errors that quote a packet. */
#define ICMP_UNREACHABLE       3
#define ICMP_ECHO              8
#define ICMP_TIME_EXCEEDED     11
#define ICMP_FRAG_NEEDED       4 /* code of ICMP_UNREACHABLE */
#define ICMP_PARAMETER_PROBLEM 12

/* ICMPv6 (RFC 4443). The errors are 1 to 4; packet too big is 2. */
#define ICMPV6_UNREACHABLE       1
#define ICMPV6_TOO_BIG           2
#define ICMPV6_PARAMETER_PROBLEM 4
#define ICMPV6_ECHO              128

/* Neighbor discovery (RFC 4861): router solicitation to redirect. */
#define ICMPV6_ND_FIRST 133
#define ICMPV6_ND_LAST  137

struct ethernet {
	__u8 destination[6];
	__u8 source[6];
	__be16 type;
} __attribute__((packed));

/* What follows a tag's protocol number, which is in the place of an EtherType. */
struct vlan_tag {
	__be16 control;
	__be16 type;
};

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

struct ipv6 {
	__be32 version_class_label;
	__be16 payload_length;
	__u8 next_header;
	__u8 hop_limit;
	__be32 source[4];
	__be32 destination[4];
};

/* How hop-by-hop options, destination options and routing headers begin. */
struct ipv6_extension {
	__u8 next_header;
	__u8 length; /* in 8 bytes, without the first 8 */
	__u8 rest[6];
};

/*
 * As many as lb/header takes, and each by itself as long as it takes all together:
 * the sum is not worth its instructions. A chain that is longer only in sum comes
 * to Weir, if it is to something of Weir's, and is dropped and counted there.
 */
#define MAX_EXTENSIONS      6
#define MAX_EXTENSION_BYTES 128

struct ipv6_fragment {
	__u8 next_header;
	__u8 reserved;
	__be16 offset;
	__be32 id;
};

struct icmp {
	__u8 type;
	__u8 code;
	__sum16 checksum;
	__be32 rest;
};

/* The first four bytes of TCP, UDP and SCTP. */
struct ports {
	__be16 source;
	__be16 destination;
};

/* UDP and behind it Generic UDP Encapsulation, variant 0 (lb/header). */
struct gue {
	struct ports ports;
	__be16 length;
	__sum16 checksum;
	__u8 version; /* 0: with the lengths of options and the control flag in it */
	__u8 next_header;
	__be16 flags;
};

#define GUE_PORT 6080

#define TCP_HEADER 20
#define TCP_FIN 0x01
#define TCP_SYN 0x02
#define TCP_RST 0x04
#define TCP_ACK 0x10
#define UDP_HEADER 8
#define SCTP_HEADER 12

#endif
