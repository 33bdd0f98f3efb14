#include "textflag.h"

// The address is the first of a descriptor's 16 bytes. n is at least 1.
//
// func prefetch(umem *byte, descs *Desc, n int)
TEXT ·prefetch(SB), NOSPLIT, $0-24
	MOVQ umem+0(FP), DI
	MOVQ descs+8(FP), SI
	MOVQ n+16(FP), CX
next:
	MOVQ (SI), AX
	PREFETCHT0 (DI)(AX*1)
	ADDQ $16, SI
	DECQ CX
	JNZ  next
	RET
