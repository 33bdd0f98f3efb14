//go:build !race

#include "textflag.h"

// The first bucket of a hash is at bits 64..127 of hash * buckets; a bucket, an entry
// and a connection are 64 bytes each. n is at least 1.

// func prefetchBuckets(first *bucket, buckets uint64, h *uint64, n int)
TEXT ·prefetchBuckets(SB), NOSPLIT, $0-32
	MOVQ first+0(FP), DI
	MOVQ buckets+8(FP), R8
	MOVQ h+16(FP), SI
	MOVQ n+24(FP), CX
next:
	MOVQ (SI), AX
	MULQ R8
	SHLQ $6, DX
	PREFETCHT0 (DI)(DX*1)
	ADDQ $8, SI
	DECQ CX
	JNZ  next
	RET

// func prefetchFlows(entries *Entry, conns *Conn, r *Ref, n int)
TEXT ·prefetchFlows(SB), NOSPLIT, $0-32
	MOVQ entries+0(FP), DI
	MOVQ conns+8(FP), R8
	MOVQ r+16(FP), SI
	MOVQ n+24(FP), CX
next:
	MOVL (SI), AX
	DECQ AX
	MOVQ AX, DX
	SHLQ $6, AX
	PREFETCHT0 (DI)(AX*1)
	SARQ $1, DX
	SHLQ $6, DX
	PREFETCHT0 (R8)(DX*1)
	ADDQ $4, SI
	DECQ CX
	JNZ  next
	RET

// func prefetchCursor(c *cursor)
TEXT ·prefetchCursor(SB), NOSPLIT, $0-8
	MOVQ c+0(FP), AX
	PREFETCHT0 (AX)
	RET

// A slot matches if its upper half is that of the hash in the first probe, live:
// the low half of the hash with the five lowest bits 00010. All eight words of the
// bucket are compared at once; the eighth, the count of those who went on, never
// matches.
//
// func candidates(first *bucket, buckets uint64, h *uint64, r *Ref, n int)
TEXT ·candidates(SB), NOSPLIT, $0-40
	MOVQ first+0(FP), DI
	MOVQ buckets+8(FP), R8
	MOVQ h+16(FP), SI
	MOVQ r+24(FP), R9
	MOVQ n+32(FP), CX
next:
	MOVQ (SI), AX
	MOVL AX, BX
	ANDL $~31, BX
	ORL  $2, BX
	MOVL BX, X0
	PSHUFD $0, X0, X0
	MULQ R8
	SHLQ $6, DX
	ADDQ DI, DX
	MOVO 0(DX), X1
	MOVO 16(DX), X2
	MOVO 32(DX), X3
	MOVO 48(DX), X4
	PSHUFD $0xf5, X1, X5
	PSHUFD $0xf5, X2, X6
	PSHUFD $0xf5, X3, X7
	PSHUFD $0xf5, X4, X8
	PCMPEQL X0, X5
	PCMPEQL X0, X6
	PCMPEQL X0, X7
	PCMPEQL X0, X8
	PAND X1, X5
	PAND X2, X6
	PAND X3, X7
	PAND X4, X8
	POR  X6, X5
	POR  X8, X7
	POR  X7, X5
	PSHUFD $0x4e, X5, X6
	POR  X6, X5
	MOVL X5, AX
	TESTL AX, AX
	JNZ  found
	CMPQ 56(DX), $0
	JEQ  found
	MOVL $0xffffffff, AX
found:
	MOVL AX, (R9)
	ADDQ $8, SI
	ADDQ $4, R9
	DECQ CX
	JNZ  next
	RET
