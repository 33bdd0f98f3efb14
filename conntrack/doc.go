// Package conntrack is Weir's flow table: one table of fixed size, outside the
// Go heap and without pointers, that all workers share.
//
// # Contents
//
// A connection is a [Conn] (32 bytes: state, times, sequence numbers, numbers of endpoint and
// Service) and two entries of 64 bytes: the forward entry (client to frontend) and the
// reverse entry (endpoint to SNAT address). Each [Entry] is a complete rewrite recipe, so
// that a packet of either direction needs one look-up. The recipe never changes once
// published. A [Ref] names an entry.
//
// Three words of an entry do change: the next hop of a steady flow, the tick of the last
// packet, and in IPv4 the TCP numbers of the first segment in that tick. The fast path
// therefore reads the entry alone, but for a segment in 64 kB and the samples of IPv6; the
// Conn is for the slow path, for ageing and for listings. The order of the writes is
// described below.
//
// Conns, entries and the cursors of port rotation live in a file mapping, from which a
// new process restores the table ([Open]). The index from keys to entries, the free lists,
// the epochs and the counters live in memory of the process alone. They are made anew from
// the entries: no lock and no half-done step of a process that was killed can be found in
// the file.
//
// # Parts
//
// [Table] is made of parts that own their words. A packet meets them in this order:
//
//	hasher, index      key.go, index.go, lookup.go: from a key to an entry
//	cells              entry.go, steady.go: entries and Conns; the words of the fast path
//	flows, counts      track.go, count.go: changes of state, with the counts that follow
//	ports              create.go, port.go, shortage.go: new connections and their SNAT ports
//	pool               qsbr.go: free and retired connections
//	Worker             gc_age.go, gc_evict.go: the end of connections
//	records            record.go: beginnings and ends for a reader, where these are wanted
//	opener, restorer, copier    persist_*.go: the table of an earlier process
//
// How a state follows from a packet is in the packages tcp, sctp and udp.
//
// # Layouts
//
// The first page of a table has a schema: part by part the size and number of the records, and
// the name, offset and width of each field; bits and states have names too
// ([github.com/weirlb/weir/conntrack/schema]). A process with the same schema goes on with the
// memory itself. Another, after an upgrade or a downgrade, makes a new table and copies the
// connections by names. It makes the recipes anew from the tuples, and compares them with those
// that it finds. Fields that it does not know are ignored, and those that are not there have a
// default. A connection is left out and counted if its state or mode is not known here, if a
// number is too large, or if it is damaged. The old table is only read: the new one takes its
// place, in a single step, when it is whole. A process that ends before leaves the work to the
// next.
//
// A name keeps its meaning in all releases; another meaning needs another name. Before the first
// release with schemas the version was 5, which [Open] knows. Tables of earlier versions are set
// aside.
//
// # The index
//
// A bucket is one cache line: twelve slots and a count of entries that wanted
// this bucket and found it full. A slot holds a tag of 8 bits and a word: the Ref, and
// whether the entry is live. A look-up compares all tags of the first bucket at once
// and goes on to the next only while that count is not zero: there are
// no tombstones, nothing moves, and nearly every look-up, hit or miss, reads a single
// bucket. One look-up in thirty meets the tag of another key, and compares the key
// of that entry too.
//
// # Concurrency
//
// Each worker goroutine has its own [Worker] and is the only caller of the methods;
// control goroutines use the methods of [Table]. Nothing takes a lock or allocates on a
// worker's path.
//
// Insertion is unique without a lock. A slot is first placed as pending; its
// owner then reads every slot where the key may be. It gives way to a live entry and to a
// pending one at a lower position, and kills a pending one at a higher position. At last it
// makes its own live by compare-and-swap, which fails if another worker killed it in turn.
// Of two workers that insert the same key each places before it reads, so at least one sees
// the other's slot; never do both go live. The slot's word carries all of this. Its tag
// only saves look-ups other entries' keys: the owner alone writes it, while the slot is not
// live.
//
// # Ageing and eviction
//
// The workers age the table themselves ([Worker.Age]). A look at every connection takes
// four seconds, 16 with 16 million of them. They divide the part that is due in a tick in
// short chunks, first come, first served. So no part of the table waits for a sleeping
// worker. No worker spends more than a few microseconds at a time, two more for every 16
// connections that it makes. [Table.Run] looks at parts that are left for two seconds. A
// connection thus goes between its timeout and, with workers that keep up, a sweep later.
//
// When free connections run short, before there are none, a hand goes round the table. It
// takes, of the connections that it passes, those that go first (see evictionClass):
//
//  1. half-open connections, of which only the client was heard (TCP before the
//     client's ACK of the SYN-ACK, SCTP before COOKIE ACK, UDP without an answer),
//     once they were silent for half a second
//  2. ended ones (reset, or closed by both sides)
//  3. unproven ones that were silent for a second: UDP of which ageing has not heard both
//     sides three times, and all flows whose endpoint's answers do not pass; short bursts of
//     packets before flows that lasted
//  4. half-open ones, then unproven ones, that are not silent
//  5. TCP connections that may be dead (doubted, or restored and not heard since), once
//     they were silent for five minutes
//  6. proven UDP whose client was silent for ten seconds; the longest silent first
//
// Others are never evicted: the new connection is refused ([Full]).
//
// Memory ordering: an entry is written with plain stores, published by the
// compare-and-swap of its slot and read after an atomic load of that slot. It is
// written again only after every online worker has called [Worker.Quiesce]
// since it was unlinked (quiescent state based reclamation). All words of a
// Conn are accessed atomically.
//
// # Generation
//
// A reader that no worker can wait for, such as a program in the kernel, cannot call
// [Worker.Quiesce]. It finds out by the generation of an entry whether all that it has read
// belongs to a single connection. The generation is raised after the entry was unlinked, and
// before anything of it or of its partner is written again. In this order, the reader loads
//
//  1. the slot's word, which names the entry
//  2. the generation
//  3. the slot's word again
//  4. the key, the next-hop word and the recipe, and of IPv6 the partner's key
//  5. the slot's word, the next-hop word and the generation again
//
// and gives up if a word has changed. At step 3 the entry was live, and so completely
// written, in the generation of step 2 or a later. At step 5 the generation is that of step 2:
// from step 3 on the entry was not written. The slot's word at step 5 says besides that the
// connection is still known: a SNAT port is given to another connection only after
// the entry that had it was unlinked.
//
// A generation has 16 bits, which is as many as are left of the cache line. It deceives a
// reader on two conditions: between its steps 2 and 5 the same entry was taken into use a
// multiple of 65,536 times, and stands in the same slot again. Each time takes two rounds
// of every worker. The reader would have to be stopped for a tenth of a second, which only
// a hypervisor does to a program in the softirq. It would also have to go on in the moment
// of 1 in 65,536. Then it forwards a single packet by the recipe of another connection,
// whose tuple has the same bucket.
//
// # The fast path
//
// The next-hop word of an entry ([Table.NextHop]) is valid only while its direction is
// steady ([Conn.Steady]). A connection leaves a steady state in three steps:
//
//  1. Its state word gets the bit slow and loses the bit young, by compare-and-swap. No
//     direction is steady or followed now (see below).
//  2. The next-hop words of both entries become a number that no word has had.
//  3. Its state word changes, by compare-and-swap.
//
// [Table.Settle] makes a direction steady, also in three steps: it loads the next-hop word,
// then the state, and then replaces the word that it loaded, by compare-and-swap.
// [Table.Resettle] takes the last two, for a caller that has loaded the word. The word of a
// direction that is not steady is nowhere: the slow path finds the next hop by the address.
//
// With an exception, no entry is steady after step 3. Suppose that a compare-and-swap of
// Settle succeeds after step 2. The word that it replaces was then loaded after step 2,
// because that number is new. So the state was loaded after step 1, and was steady again:
// another worker has removed slow. Then step 3 fails, and its caller begins with step 1.
// The exception is a third worker at step 1, which has set slow again: step 3 succeeds, and
// the entry is steady until the third worker's step 2. All these operations are atomic, and
// Go orders atomic operations sequentially.
//
// A worker may stop between two steps. Meanwhile packets take the slow path, or the
// connection is still in its old state. In the exception, packets without SYN, FIN and RST
// are forwarded and do not change the new state.
//
// In a table that a program in the kernel reads, a TCP connection that was established a moment
// ago is followed: it has slow and young in its state, and next-hop words with [Followed]. The
// program forwards its packets and notes the numbers of each, the workers track each. What is
// said above of steady holds of followed too. Ageing makes the connection steady.
//
// A UDP flow changes its state twice while it goes on, and needs none of these steps: in the
// new state every direction is steady that was steady before, so that a single
// compare-and-swap is enough. The first answer makes it StateReplied, on the slow path: the
// reverse direction is not steady before. The change to StateStream has no packet of its own.
// Whether the flow has gone on follows from the ticks of its creation, of the first answer and
// of the latest packet. [Table.Conn], ageing and eviction make the change before they look at
// the state. The first two ticks are stored before the state that says they are valid; the
// third grows. A worker that was late with the first answer, or is a tick behind, can only put
// the change off to a later packet. A flow that is deleted meanwhile stays deleted, since both
// change the same word by compare-and-swap.
package conntrack
