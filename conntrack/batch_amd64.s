//go:build !race

#include "textflag.h"

// The first bucket of a hash is at bits 64..127 of hash * buckets. A bucket and an entry are
// 64 bytes each, a connection 32. n is at least 1.

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

// func prefetchEntries(entries *Entry, r *Ref, n int)
TEXT ·prefetchEntries(SB), NOSPLIT, $0-24
	MOVQ entries+0(FP), DI
	MOVQ r+8(FP), SI
	MOVQ n+16(FP), CX
next:
	MOVL (SI), AX
	DECQ AX
	SHLQ $6, AX
	PREFETCHT0 (DI)(AX*1)
	ADDQ $4, SI
	DECQ CX
	JNZ  next
	RET

// func prefetchOthers(entries *Entry, r *Ref, n int)
TEXT ·prefetchOthers(SB), NOSPLIT, $0-24
	MOVQ entries+0(FP), DI
	MOVQ r+8(FP), SI
	MOVQ n+16(FP), CX
next:
	MOVL (SI), AX
	DECQ AX
	XORQ $1, AX
	SHLQ $6, AX
	PREFETCHT0 (DI)(AX*1)
	ADDQ $4, SI
	DECQ CX
	JNZ  next
	RET

// func prefetchConn(c *Conn)
TEXT ·prefetchConn(SB), NOSPLIT, $0-8
	MOVQ c+0(FP), AX
	PREFETCHT0 (AX)
	RET

// func prefetchLink(l *link)
TEXT ·prefetchLink(SB), NOSPLIT, $0-8
	MOVQ l+0(FP), AX
	PREFETCHT0 (AX)
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
	SHLQ $5, DX
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

// The twelve tags of the bucket and the count behind them are compared at once with the
// tag of the hash: its lowest byte, 1 if that is 0. The first slot that has it is the
// candidate, whatever its state.
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
	MOVBLZX AX, BX
	CMPL BX, $1
	ADCL $0, BX
	IMULL $0x01010101, BX
	MOVL BX, X0
	PSHUFD $0, X0, X0
	MULQ R8
	SHLQ $6, DX
	ADDQ DI, DX
	PCMPEQB 0(DX), X0
	PMOVMSKB X0, BX
	ANDL $0xfff, BX
	JEQ  none
	BSFL BX, BX
	MOVL 16(DX)(BX*4), AX
	TESTL AX, AX
	JEQ  unresolved
found:
	MOVL AX, (R9)
	ADDQ $8, SI
	ADDQ $4, R9
	DECQ CX
	JNZ  next
	RET
none:
	XORL AX, AX
	CMPL 12(DX), $0
	JEQ  found
unresolved:
	MOVL $0xffffffff, AX
	JMP  found

// The top bits of the twelve slot words say which are pending.
//
// func contenders(b *bucket, tags uint32) uint32
TEXT ·contenders(SB), NOSPLIT, $0-20
	MOVQ b+0(FP), DX
	MOVL tags+8(FP), X0
	PSHUFD $0, X0, X0
	MOVUPS 16(DX), X1
	MOVUPS 32(DX), X2
	MOVUPS 48(DX), X3
	MOVMSKPS X1, AX
	MOVMSKPS X2, BX
	MOVMSKPS X3, CX
	SHLL $4, BX
	SHLL $8, CX
	ORL  BX, AX
	ORL  CX, AX
	PCMPEQB 0(DX), X0
	PMOVMSKB X0, BX
	ANDL $0xfff, BX
	ORL  BX, AX
	MOVL AX, ret+16(FP)
	RET

// func tagged(b *bucket, tags uint32) uint32
TEXT ·tagged(SB), NOSPLIT, $0-20
	MOVQ b+0(FP), DX
	MOVL tags+8(FP), X0
	PSHUFD $0, X0, X0
	PCMPEQB 0(DX), X0
	PMOVMSKB X0, AX
	ANDL $0xfff, AX
	MOVL AX, ret+16(FP)
	RET
