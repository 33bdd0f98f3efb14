package lb

import "github.com/weirlb/weir/lb/xsk"

// split is a worker's queue of an interface whose packets arrive by a veth pair: one socket
// receives, on the pair, and one sends, on the interface.
type split struct {
	*xsk.Socket // sends
	receive     *xsk.Socket
}

func (q split) Receive(out []xsk.Desc) int { return q.receive.Receive(out) }
func (q split) Pending() int               { return q.receive.Pending() }
func (q split) Fill(addrs []uint64) int    { return q.receive.Fill(addrs) }
