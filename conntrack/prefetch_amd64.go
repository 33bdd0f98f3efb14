package conntrack

// prefetch asks for the cache line of b.
//
//go:noescape
func prefetch(b *bucket)

// prefetchFlow asks for the first line of an entry and for that of its
// connection.
//
//go:noescape
func prefetchFlow(e *Entry, c *Conn)
