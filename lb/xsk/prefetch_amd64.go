package xsk

//go:noescape
func prefetch(area *byte, descs *Desc, n int)
