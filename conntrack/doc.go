// Package conntrack is Weir's flow table: one table of fixed size, outside the
// Go heap and without pointers, that all workers share.
//
// # What is in it
//
// A connection is a [Conn] (64 bytes of words that change: state, last seen,
// adjacencies) and two entries of 64 bytes that never change once published:
// the forward entry (client to frontend) and the reverse entry (endpoint to
// SNAT address). Each [Entry] is a complete rewrite recipe, so that a packet of
// either direction needs one look-up. A [Ref] names an entry.
//
// Conns, entries and the cursors of port rotation live in a file mapping that a
// new process adopts ([Open]). The index from keys to entries, the free lists,
// the epochs and the counters live in memory of the process alone and are made
// anew from the entries: no lock and no half-done step of a process that was
// killed can be found in the file.
//
// # The index
//
// A bucket is one cache line: seven slots and a count of entries that wanted
// this bucket and found it full. A slot holds a tag of 27 bits, the number of
// the probe that placed it, its state and a Ref. A look-up reads the first
// bucket and goes on to the next only while that count is not zero: there are
// no tombstones, nothing moves, and nearly every look-up, hit or miss, reads
// one bucket.
//
// # Who may do what
//
// Each worker goroutine has a [Worker] of its own and is the only one to call
// its methods; control goroutines use the methods of [Table]. Nothing takes a
// lock or allocates on a worker's path.
//
// Insertion is unique without a lock. A slot is first placed as pending; its
// owner then reads every slot where the key may be. It gives way to a live
// entry and to a pending one at a lower position, kills a pending one at a
// higher position, and at last makes its own live by compare-and-swap, which
// fails if it was killed in turn. Of two that insert the same key each places
// before it reads, so at least one sees the other; never do both go live.
//
// Memory ordering: an entry is written with plain stores, published by the
// compare-and-swap of its slot and read after an atomic load of that slot. It is
// written again only after every online worker has called [Worker.Quiesce]
// since it was unlinked (quiescent state based reclamation). All words of a
// Conn are accessed atomically.
package conntrack
