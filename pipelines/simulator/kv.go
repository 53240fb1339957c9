package simulator

// pool is the paged KV cache: a number of blocks, of which some are held by
// requests and some only remembered for the prefix cache, to be dropped, oldest
// first, when memory is needed.
type pool struct {
	total  int
	held   int               // blocks that some request holds, shared ones counted once
	cached map[uint64]*block // full prompt blocks by the hash of everything up to their end
	idle   block             // ring of cached blocks that nobody holds, oldest first
	nidle  int
}

// block is a full block of a prompt that is, or can be, shared.
type block struct {
	hash       uint64
	refs       int
	prev, next *block // in the idle ring while refs is 0
}

func newPool(total int) *pool {
	p := &pool{total: total, cached: make(map[uint64]*block)}
	p.idle.prev, p.idle.next = &p.idle, &p.idle
	return p
}

// holding is what one request holds.
type holding struct {
	shared  []*block // cached blocks, from the start of the prompt
	private int      // blocks of its own
}

func (h *holding) blocks() int { return len(h.shared) + h.private }

// admit takes need blocks for a prompt whose full blocks have these hashes; at most
// share of them may come from the cache. It takes all or nothing.
func (p *pool) admit(h *holding, hashes []uint64, share, need int) bool {
	hits, revived := 0, 0
	for hits < min(share, len(hashes)) {
		b := p.cached[hashes[hits]]
		if b == nil {
			break
		}
		if b.refs == 0 {
			revived++
		}
		hits++
	}
	if p.held+revived+need-hits > p.total {
		return false
	}
	h.shared = make([]*block, hits, len(hashes))
	for i := range hits {
		b := p.cached[hashes[i]]
		if b.refs == 0 {
			b.prev.next, b.next.prev = b.next, b.prev
			p.nidle--
			p.held++
		}
		b.refs++
		h.shared[i] = b
	}
	p.grow(h, need-hits)
	return true
}

// grow takes n blocks more, or none and reports false.
func (p *pool) grow(h *holding, n int) bool {
	if p.held+n > p.total {
		return false
	}
	for p.held+p.nidle+n > p.total {
		old := p.idle.next
		p.idle.next, old.next.prev = old.next, &p.idle
		p.nidle--
		delete(p.cached, old.hash)
	}
	p.held += n
	h.private += n
	return true
}

// remember makes the computed blocks of a prompt shareable.
func (p *pool) remember(h *holding, hashes []uint64) {
	for _, hash := range hashes[len(h.shared):] {
		if p.cached[hash] != nil {
			return // computed twice; the later copy stays private
		}
		b := &block{hash: hash, refs: 1}
		p.cached[hash] = b
		h.shared = append(h.shared, b)
		h.private--
	}
}

// release gives everything back. The end of a prompt is forgotten before its
// beginning, which more prompts share.
func (p *pool) release(h *holding) {
	p.held -= h.private
	for i := len(h.shared) - 1; i >= 0; i-- {
		b := h.shared[i]
		if b.refs--; b.refs == 0 {
			last := p.idle.prev
			b.prev, b.next = last, &p.idle
			last.next, p.idle.prev = b, b
			p.nidle++
			p.held--
		}
	}
	*h = holding{}
}
