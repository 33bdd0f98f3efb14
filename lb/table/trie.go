package table

// The trie maps a frontend's key to its entry. Each level takes six bits of
// the key's hash; a leaf holds up to leafSize entries and is split when it
// would hold more, so depth follows the number of frontends by itself.
//
// Nodes are immutable once published. An edit has a separate number and copies a node the
// first time it touches it; from then on, until publication, it writes the copy: the
// first load of 10,000 Services copies nothing.

const (
	fanoutBits = 6
	fanout     = 1 << fanoutBits
	leafSize   = 16
	// maxDepth is the level at which the hash is used up: leaves there grow without bound.
	maxDepth = 64 / fanoutBits
)

// node is an inner node (kids is set) or a leaf.
type node struct {
	kids  *[fanout]*node
	items []item
	edit  uint64 // the edit that may write the node
}

type item struct {
	hash  uint64
	entry *FrontendEntry
}

// find is the entry with key k, or nil.
func (n *node) find(k *Key, hash uint64) *FrontendEntry {
	for h := hash; n != nil; h >>= fanoutBits {
		if n.kids != nil {
			n = n.kids[h%fanout]
			continue
		}
		for i := range n.items {
			if n.items[i].hash == hash && n.items[i].entry.Key == *k {
				return n.items[i].entry
			}
		}
		return nil
	}
	return nil
}

// own is the node itself if the edit made it, or else a copy that it may write.
func (n *node) own(edit uint64) *node {
	if n.edit == edit {
		return n
	}
	c := &node{edit: edit}
	if n.kids != nil {
		kids := *n.kids
		c.kids = &kids
	} else {
		c.items = append(make([]item, 0, len(n.items)+1), n.items...)
	}
	return c
}

// put is the trie with e in it, in place of an entry with the same key. n may be nil.
func (n *node) put(e *FrontendEntry, hash uint64, depth int, edit uint64) *node {
	if n == nil {
		return &node{items: []item{{hash, e}}, edit: edit}
	}
	n = n.own(edit)
	if n.kids == nil {
		for i := range n.items {
			if n.items[i].hash == hash && n.items[i].entry.Key == e.Key {
				n.items[i].entry = e
				return n
			}
		}
		if len(n.items) < leafSize || depth >= maxDepth {
			n.items = append(n.items, item{hash, e})
			return n
		}
		n.split(depth, edit)
	}
	kid := &n.kids[hash>>(depth*fanoutBits)%fanout]
	*kid = (*kid).put(e, hash, depth+1, edit)
	return n
}

// split makes a full leaf an inner node.
func (n *node) split(depth int, edit uint64) {
	items := n.items
	n.items, n.kids = nil, new([fanout]*node)
	for _, it := range items {
		kid := &n.kids[it.hash>>(depth*fanoutBits)%fanout]
		*kid = (*kid).put(it.entry, it.hash, depth+1, edit)
	}
}

// del is the trie without key k, nil when nothing is left. The key must be in it.
func (n *node) del(k *Key, hash uint64, depth int, edit uint64) *node {
	n = n.own(edit)
	if n.kids != nil {
		kid := &n.kids[hash>>(depth*fanoutBits)%fanout]
		*kid = (*kid).del(k, hash, depth+1, edit)
		return n.shrink(*kid)
	}
	for i := range n.items {
		if n.items[i].hash == hash && n.items[i].entry.Key == *k {
			last := len(n.items) - 1
			n.items[i] = n.items[last]
			n.items[last] = item{}
			n.items = n.items[:last]
			break
		}
	}
	if len(n.items) == 0 {
		return nil
	}
	return n
}

// shrink is an inner node after a deletion below kid: nothing without children, the leaf if
// that is the only child, so that a trie that has been large is not deep forever.
func (n *node) shrink(changed *node) *node {
	if changed != nil && (changed.kids != nil || len(changed.items) > leafSize/2) {
		return n
	}
	var only *node
	for _, kid := range n.kids {
		switch {
		case kid == nil:
		case only != nil:
			return n
		default:
			only = kid
		}
	}
	if only != nil && only.kids != nil {
		return n
	}
	return only
}

// walk gives every entry to yield until that says stop.
func (n *node) walk(yield func(*FrontendEntry) bool) bool {
	if n == nil {
		return true
	}
	for _, it := range n.items {
		if !yield(it.entry) {
			return false
		}
	}
	if n.kids != nil {
		for _, kid := range n.kids {
			if !kid.walk(yield) {
				return false
			}
		}
	}
	return true
}
