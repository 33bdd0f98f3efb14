package netlab

import (
	"context"
	"io"
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

// Forward joins each TCP connection to an address of the namespace with one that to makes for it, until Close. It
// returns the address, whose port may have been 0.
func (l *Lab) Forward(n *Namespace, address string, to func(in net.Conn) (net.Conn, error)) (net.Addr, error) {
	listener, err := n.Listen("tcp", address)
	if err != nil {
		return nil, err
	}
	l.OnClose(listener.Close)
	go func() {
		for {
			in, err := listener.Accept()
			if err != nil {
				return
			}
			go join(in, to)
		}
	}()
	return listener.Addr(), nil
}

// join copies between a connection and that which to makes for it, until both ends have closed.
func join(in net.Conn, to func(net.Conn) (net.Conn, error)) {
	defer in.Close()
	out, err := to(in)
	if err != nil {
		return
	}
	defer out.Close()
	go func() {
		_, _ = io.Copy(out, in)
		if half, ok := out.(interface{ CloseWrite() error }); ok {
			_ = half.CloseWrite()
		}
	}()
	_, _ = io.Copy(in, out)
}
