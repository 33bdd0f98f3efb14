#include "textflag.h"

// func prefetch(b *bucket)
TEXT ·prefetch(SB), NOSPLIT, $0-8
	MOVQ b+0(FP), AX
	PREFETCHT0 (AX)
	RET

// func prefetchFlow(e *Entry, c *Conn)
TEXT ·prefetchFlow(SB), NOSPLIT, $0-16
	MOVQ e+0(FP), AX
	MOVQ c+8(FP), CX
	PREFETCHT0 (AX)
	PREFETCHT0 (CX)
	RET
