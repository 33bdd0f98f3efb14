package netlab

import (
	"context"
	"net"
)

// Listen is net.Listen inside the namespace. The address must be numeric.
func (n *Namespace) Listen(network, address string) (net.Listener, error) {
	var l net.Listener
	err := n.Do(func() (err error) {
		l, err = net.Listen(network, address)
		return err
	})
	return l, err
}

// ListenPacket is net.ListenPacket inside the namespace. The address must be
// numeric.
func (n *Namespace) ListenPacket(network, address string) (net.PacketConn, error) {
	var c net.PacketConn
	err := n.Do(func() (err error) {
		c, err = net.ListenPacket(network, address)
		return err
	})
	return c, err
}

// DialContext is net.Dialer.DialContext inside the namespace; it fits
// http.Transport. The address must be numeric: resolving a name may happen
// on another thread, outside the namespace.
func (n *Namespace) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	return n.DialWith(ctx, &net.Dialer{}, network, address)
}

// DialWith is DialContext with a dialer of the caller's.
func (n *Namespace) DialWith(ctx context.Context, d *net.Dialer, network, address string) (net.Conn, error) {
	var c net.Conn
	err := n.Do(func() (err error) {
		c, err = d.DialContext(ctx, network, address)
		return err
	})
	return c, err
}
