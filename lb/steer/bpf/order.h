/* SPDX-License-Identifier: Apache-2.0 */
/* The order of loads from memory that the process writes at the same time. */
#ifndef WEIR_ORDER_H
#define WEIR_ORDER_H

/* LOAD loads a word that the process may write at the same time. */
#define LOAD(x) (*(const volatile typeof(x) *)&(x))
#define STORE(x, v) (*(volatile typeof(x) *)&(x) = (v))

/*
 * Set by the loader where the machine does not keep loads in order. An atomic operation with
 * a result is a full barrier; a load that acquires would need Linux 6.15.
 */
const volatile __u8 unordered_loads = 0;

static __always_inline void order_loads(void)
{
	__u64 word = 0;
	if (unordered_loads)
		__sync_fetch_and_add(&word, 1);
	else
		asm volatile("" ::: "memory");
}

/*
 * Set by a test: how often the program looks at the clock while it reads a recipe, so that
 * others have the time to write one. With 0 the verifier removes the loop.
 */
const volatile __u32 stall = 0;

static __always_inline void stall_for_test(void)
{
	for (__u32 i = 0; i < stall; i++)
		bpf_ktime_get_ns();
}

#endif
