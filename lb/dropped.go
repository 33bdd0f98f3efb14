package lb

import "github.com/weirlb/weir/lb/worker"

// DropSamples are the samples of all workers, per worker and reason the oldest
// first. One that is overwritten meanwhile is left out.
func (l *LB) DropSamples() []worker.DropSample {
	var out []worker.DropSample
	for _, w := range l.workers {
		out = w.DropSamples(out)
	}
	return out
}

// InterfaceName is the name of the interface of a port, "" for none.
func (l *LB) InterfaceName(port int) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ports.Name(port)
}
