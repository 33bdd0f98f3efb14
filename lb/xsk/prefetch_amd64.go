package xsk

//go:noescape
func prefetch(umem *byte, descs *Desc, n int)
