/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The generator: writes one UDP packet of 64 bytes (60 without the frame check
 * sequence) and sends it out of an interface. It is run by BPF_PROG_TEST_RUN
 * with live frames, which gives it the same pages again and again, so that it
 * writes every header in full.
 *
 * Flow f comes from client address base + f % 256 + f / 2^23 * 256 and port
 * 1024 + f / 256 % 2^15. It goes to the frontend or, where the packet path
 * measured balances nothing, to an endpoint chosen by a hash of f.
 *
 * A run that must not send now (see due) drops the frame, which gives its page
 * back: the pace is kept inside, without a system call.
 */
#include "../../sink/bpf/kernel.h"

/* How flows are chosen. */
enum order {
	RANDOM,   /* uniformly, any number of times */
	SEQUENCE, /* one after the other; flow count of them */
	ROUND,    /* one after the other, again and again */
};

/* What to send. Written by user space while no run is under way. */
struct plan {
	__u32 ifindex;
	__u32 order;
	__u32 first; /* number of the first flow */
	__u32 flows; /* how many of them */
	__u32 client;    /* first client address, host byte order as all here */
	__u32 target;    /* frontend, or first endpoint */
	__u32 endpoints; /* addresses from target on; 1: a frontend */
	__u16 port;      /* of target */
	__u8 destination[6];
	__u8 source[6];
	__u32 window;   /* packets on their way at most; 0: no limit */
	__u32 cpus[2];  /* where the sink counts */
	__u64 interval; /* ns between packets, times 1024; 0: no limit */
};

struct progress {
	__u64 sent;
	__u64 random;
	__u64 start;     /* of the pace, ns */
	__u64 paced;     /* packets sent since */
	__u64 delivered; /* the sink's count when last asked, plus what was lost */
	__u64 forgiven;  /* packets given up as lost */
	__u64 moved;     /* when delivered last changed, ns */
	__u64 calls;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct plan);
} plans SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct progress);
} states SEC(".maps");

/* The map of the sink at which packets end. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct count);
} counts SEC(".maps");

/* Packets are given up as lost when none has arrived for so long. */
#define GIVE_UP_NS 50000000
/* The sink's counter is in another core's cache: ask for it now and then. */
#define ASK_EVERY 32

static __always_inline __u64 counted(struct plan *p)
{
	__u32 zero = 0;
	__u64 sum = 0;
	struct count *c = bpf_map_lookup_percpu_elem(&counts, &zero, p->cpus[0]);
	if (c)
		sum = c->packets;
	if (p->cpus[1] != p->cpus[0]) {
		c = bpf_map_lookup_percpu_elem(&counts, &zero, p->cpus[1]);
		if (c)
			sum += c->packets;
	}
	return sum;
}

/* Whether the window has room. */
static __always_inline int admitted(struct plan *p, struct progress *s)
{
	if (s->sent - s->delivered < p->window)
		return 1;
	if (s->calls++ % ASK_EVERY)
		return 0;
	__u64 now = bpf_ktime_get_ns();
	__u64 delivered = counted(p) + s->forgiven;
	if (delivered != s->delivered) {
		s->delivered = delivered;
		s->moved = now;
	} else if (now - s->moved > GIVE_UP_NS) {
		s->forgiven += s->sent - s->delivered;
		s->delivered = s->sent;
		s->moved = now;
	}
	return s->sent - s->delivered < p->window;
}

static __always_inline int due(struct plan *p, struct progress *s)
{
	if (p->order == SEQUENCE && s->sent >= p->flows)
		return 0;
	if (p->window && !admitted(p, s))
		return 0;
	if (!p->interval)
		return 1;
	__u64 elapsed = (bpf_ktime_get_ns() - s->start) << 10;
	__u64 at = s->paced * p->interval;
	if (elapsed < at)
		return 0;
	/* Who was kept from running does not catch up by a flood. */
	if (elapsed - at > (1000000ULL << 10)) {
		s->start += (elapsed - at) >> 10;
	}
	s->paced++;
	return 1;
}

static __always_inline __u32 choose(struct plan *p, struct progress *s)
{
	if (p->order != RANDOM)
		return p->first + s->sent % p->flows;
	s->random = s->random * 6364136223846793005ULL + 1442695040888963407ULL;
	return p->first + (((s->random >> 32) * p->flows) >> 32);
}

static __always_inline __u32 mix(__u32 x)
{
	x ^= x >> 16;
	x *= 0x7feb352dU;
	x ^= x >> 15;
	x *= 0x846ca68bU;
	return x ^ x >> 16;
}

static __always_inline __u16 fold(__u32 sum)
{
	sum = (sum >> 16) + (sum & 0xffff);
	sum = (sum >> 16) + (sum & 0xffff);
	return ~sum;
}

static __always_inline __u32 halves(__u32 address) { return (address >> 16) + (address & 0xffff); }

#define IP_LEN 46 /* with it the frame has 60 bytes */
#define UDP_LEN (IP_LEN - sizeof(struct ipv4))

SEC("xdp")
int generate(struct xdp_md *ctx)
{
	struct ethernet *eth = (void *)(long)ctx->data;
	struct ipv4 *ip = (void *)(eth + 1);
	struct udp *udp = (void *)(ip + 1);
	__u32 zero = 0;

	if ((void *)eth + sizeof(*eth) + IP_LEN > (void *)(long)ctx->data_end)
		return XDP_ABORTED;
	struct plan *p = bpf_map_lookup_elem(&plans, &zero);
	struct progress *s = bpf_map_lookup_elem(&states, &zero);
	if (!p || !s || !p->flows)
		return XDP_ABORTED;
	if (!due(p, s))
		return XDP_DROP;

	__u32 flow = choose(p, s);
	__u32 from = p->client + (flow & 0xff) + (flow >> 23 << 8);
	__u32 port = 1024 + (flow >> 8 & 0x7fff);
	__u32 to = p->target;
	if (p->endpoints > 1)
		to += ((__u64)mix(flow) * p->endpoints) >> 32;
	s->sent++;

	__builtin_memcpy(eth->destination, p->destination, 6);
	__builtin_memcpy(eth->source, p->source, 6);
	eth->type = bpf_htons(ETH_P_IP);

	ip->version_ihl = 0x45;
	ip->tos = 0;
	ip->length = bpf_htons(IP_LEN);
	ip->id = 0;
	ip->fragment = bpf_htons(0x4000); /* do not fragment */
	ip->ttl = 64;
	ip->protocol = IPPROTO_UDP;
	__u32 addresses = halves(from) + halves(to);
	ip->checksum = bpf_htons(fold(0x4500 + IP_LEN + 0x4000 + (64 << 8 | IPPROTO_UDP) + addresses));
	ip->source = bpf_htonl(from);
	ip->destination = bpf_htonl(to);

	udp->source = bpf_htons(port);
	udp->destination = bpf_htons(p->port);
	udp->length = bpf_htons(UDP_LEN);
	__u16 check = fold(addresses + IPPROTO_UDP + UDP_LEN + port + p->port + UDP_LEN); /* the payload is 0 */
	udp->checksum = bpf_htons(check ? check : 0xffff);
	return bpf_redirect(p->ifindex, 0);
}

char _license[] SEC("license") = "Apache-2.0";
