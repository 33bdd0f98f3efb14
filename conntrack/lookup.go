package conntrack

// Lookup returns the entry of k, whose Hash is h, or 0. The Ref is good until the
// worker's next Quiesce.
func (w *Worker) Lookup(h uint64, k *Key) Ref { return w.t.index.find(h, k) }

// LookupBatch looks up h[i], k[i] for every i of out. It is [Worker.PrefetchBuckets],
// [Worker.Candidates] and [Worker.Confirm]; a caller with other work in between calls
// these.
func (w *Worker) LookupBatch(h []uint64, k []Key, out []Ref) {
	w.PrefetchBuckets(h[:len(out)])
	w.Candidates(h, out)
	w.Confirm(h, k, out)
}

// unresolved marks, between the passes, a key whose first bucket says to look on.
const unresolved = ^Ref(0)

// PrefetchBuckets asks for the cache lines that Candidates reads.
func (w *Worker) PrefetchBuckets(h []uint64) {
	if t := w.t; len(h) > 0 {
		prefetchBuckets(&t.index.buckets[0], uint64(len(t.index.buckets)), &h[0], len(h))
	}
}

// Candidates finds the entries that may be those of the hashes, and asks for the cache
// lines of these. The values left in out are for Confirm.
func (w *Worker) Candidates(h []uint64, out []Ref) {
	n := len(out)
	if n == 0 {
		return
	}
	t := w.t
	h = h[:n]
	candidates(&t.index.buckets[0], uint64(len(t.index.buckets)), &h[0], &out[0], n)
	prefetchEntries(&t.entries[0], &out[0], n)
}

// PrefetchOthers prefetches the entries of the other directions of the Refs that Candidates
// has left in refs: of an IPv6 flow these have the new addresses.
func (w *Worker) PrefetchOthers(refs []Ref) {
	if len(refs) > 0 {
		prefetchOthers(&w.t.entries[0], &refs[0], len(refs))
	}
}

// PrefetchFlows prefetches all else of the connections of the Refs that Candidates has left in
// refs: packets that are tracked need it.
func (w *Worker) PrefetchFlows(refs []Ref) {
	if t := w.t; len(refs) > 0 {
		prefetchFlows(&t.entries[0], &t.conns[0], &refs[0], len(refs))
		prefetchOthers(&t.entries[0], &refs[0], len(refs))
	}
}

// Confirm turns the results of Candidates into the entries of the keys, or 0.
func (w *Worker) Confirm(h []uint64, k []Key, out []Ref) {
	t := w.t
	h, k = h[:len(out)], k[:len(out)]
	for i, r := range out {
		if r == 0 || uint64(r-1) < uint64(len(t.entries)) && t.entries[r-1].Key.equal(&k[i]) {
			continue
		}
		out[i] = t.index.find(h[i], &k[i])
	}
}

// Confirmed is Confirm of a single key: it returns the entry of k, whose Hash is h and for
// which Candidates has left r, or 0.
func (w *Worker) Confirmed(h uint64, k *Key, r Ref) Ref {
	t := w.t
	if r == 0 || uint64(r-1) < uint64(len(t.entries)) && t.entries[r-1].Key.equal(k) {
		return r
	}
	return t.index.find(h, k)
}

// candidate returns the Ref in the first slot of a first bucket that has the tag of h. It
// is 0 if there is none and no other bucket can have the key. The assembly of candidates
// does the same. The slot may not be live, or another key's: the key tells.
func (b *bucket) candidate(h uint64) Ref {
	for g := range uint32(len(b.tag)) {
		if m := matches(b.tag[g].Load(), tagOf(h)); m != 0 {
			if w := b.slot[slotOf(g, m)].Load(); w != 0 {
				return Ref(w)
			}
			return unresolved
		}
	}
	if b.over.Load() != 0 {
		return unresolved
	}
	return 0
}
