/* SPDX-License-Identifier: Apache-2.0 */
/* IPv6 extension headers (RFC 8200 section 4). */
#ifndef WEIR_EXTENSION_H
#define WEIR_EXTENSION_H

#include "maps.h"

/* The unread part of a packet. */
struct cursor {
	void *at;
	void *end;
};

/*
 * skip_extensions moves p from the end of the IPv6 header behind the extension
 * headers, or behind the fragment header of a later fragment, and says what is
 * there; anything but REDIRECTED ends the matter. An atomic fragment is no
 * fragment (RFC 6946).
 */
static __always_inline enum verdict skip_extensions(struct cursor *p, __u8 next, __u8 *protocol, __be32 *id, __be16 *place)
{
#pragma unroll
	for (int i = 0; i < MAX_EXTENSIONS; i++) {
		const struct ipv6_extension *h = p->at;
		__u32 size = sizeof(*h);
		switch (next) {
		case IPPROTO_AH:
		case IPPROTO_MH:
			return PASS_EXTENSION;
		case IPPROTO_HOPOPTS:
		case IPPROTO_ROUTING:
		case IPPROTO_DSTOPTS:
			if (p->at + sizeof(*h) > p->end)
				return PASS_MALFORMED;
			size += h->length * 8;
			if (size > MAX_EXTENSION_BYTES)
				return PASS_EXTENSION;
			break;
		case IPPROTO_FRAGMENT: {
			const struct ipv6_fragment *f = p->at;
			if (p->at + sizeof(*f) > p->end)
				return PASS_MALFORMED;
			*place = f->offset & bpf_htons(IPV6_FRAGMENT_OFFSET | IPV6_MORE_FRAGMENTS);
			*id = f->id;
			break;
		}
		default:
			*protocol = next;
			return REDIRECTED;
		}
		next = h->next_header;
		p->at += size;
		if (*place & bpf_htons(IPV6_FRAGMENT_OFFSET)) {
			*protocol = next;
			return REDIRECTED;
		}
	}
	switch (next) {
	case IPPROTO_HOPOPTS:
	case IPPROTO_ROUTING:
	case IPPROTO_DSTOPTS:
	case IPPROTO_FRAGMENT:
	case IPPROTO_AH:
	case IPPROTO_MH:
		return PASS_EXTENSION;
	}
	*protocol = next;
	return REDIRECTED;
}

#endif
