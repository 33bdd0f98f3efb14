//go:build !amd64

package xsk

// prefetch does nothing: a load instead would wait for the line as the first stage does.
func prefetch(*byte, *Desc, int) {}
