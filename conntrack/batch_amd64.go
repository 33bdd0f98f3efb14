//go:build !race

package conntrack

// prefetchBuckets asks for the first bucket of each of n hashes; buckets is the
// number of buckets.
//
//go:noescape
func prefetchBuckets(first *bucket, buckets uint64, h *uint64, n int)

// prefetchEntries asks for the entry of each of n Refs. A Ref of 0 does no harm.
//
//go:noescape
func prefetchEntries(entries *Entry, r *Ref, n int)

// prefetchOthers asks for the entry beside that of each of n Refs. A Ref of 0 does no harm.
//
//go:noescape
func prefetchOthers(entries *Entry, r *Ref, n int)

// prefetchConn asks for the line of a connection.
//
//go:noescape
func prefetchConn(c *Conn)

// prefetchLink asks for the line of a link.
//
//go:noescape
func prefetchLink(l *link)

// prefetchFlows asks for the entry of each of n Refs, and for its connection. A Ref of 0
// does no harm.
//
//go:noescape
func prefetchFlows(entries *Entry, conns *Conn, r *Ref, n int)

// candidates finds for each of n hashes the first slot of its first bucket that has the
// tag of the hash: its Ref, or 0 if the table has no such key, or else unresolved.
//
//go:noescape
func candidates(first *bucket, buckets uint64, h *uint64, r *Ref, n int)

// tagged returns which slots of a bucket have the tag, given in each byte of tags: slot i in
// bit i.
//
//go:noescape
func tagged(b *bucket, tags uint32) uint32

// contenders returns which slots of a bucket are pending or have the tag, given in each byte
// of tags: slot i in bit i. The tags are loaded last: that of a slot that was live then is
// set.
//
//go:noescape
func contenders(b *bucket, tags uint32) uint32

// prefetchCursor asks for the line of a cursor.
//
//go:noescape
func prefetchCursor(c *cursor)
