package netlab

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Tap sends and receives whole frames on an interface, beside the kernel.
type Tap struct {
	name   string
	socket *os.File
	raw    interface {
		Read(func(uintptr) bool) error
	}
	mac []byte
}

// maxFrame is the largest frame that a tap takes: 64 KiB and a header.
const maxFrame = 1<<16 + 64

// NewTap opens a tap on an interface of n.
func NewTap(n *Namespace, ifname string) (*Tap, error) {
	l, err := n.link(ifname)
	if err != nil {
		return nil, err
	}
	t := &Tap{name: n.name + "/" + ifname, mac: l.Attrs().HardwareAddr}
	err = n.Do(func() error {
		fd, err := packetSocket(l.Attrs().Index)
		if err != nil {
			return err
		}
		// Frames sent from here by others, the kernel's own, are not wanted;
		// a VLAN tag is told beside the frame.
		err = errors.Join(
			unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_AUXDATA, 1),
			unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1),
			unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 4<<20))
		if err != nil {
			unix.Close(fd)
			return err
		}
		t.socket = os.NewFile(uintptr(fd), "tap "+t.name)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("tap %s: %w", t.name, err)
	}
	if t.raw, err = t.socket.SyscallConn(); err != nil {
		t.socket.Close()
		return nil, err
	}
	return t, nil
}

// Send puts a frame on the wire as it is.
func (t *Tap) Send(frame []byte) error {
	_, err := t.socket.Write(frame)
	return err
}

// Receive returns the next frame, with VLAN tags. partial is true when the
// transport checksum is left to the device. The error is os.ErrDeadlineExceeded
// when nothing comes within the given time.
func (t *Tap) Receive(within time.Duration) (frame []byte, partial bool, err error) {
	buf, oob := make([]byte, maxFrame), make([]byte, 256)
	if err := t.socket.SetReadDeadline(time.Now().Add(within)); err != nil {
		return nil, false, err
	}
	var n, oobn int
	var failed error
	err = t.raw.Read(func(fd uintptr) bool {
		n, oobn, _, _, failed = unix.Recvmsg(int(fd), buf, oob, 0)
		return !errors.Is(failed, unix.EAGAIN)
	})
	if err = errors.Join(err, failed); err != nil {
		if errors.Is(err, os.ErrDeadlineExceeded) {
			err = os.ErrDeadlineExceeded
		}
		return nil, false, err
	}
	return withTag(buf[:n], oob[:oobn])
}

// withTag puts the VLAN tag that the kernel took off back into the frame
// (packet(7), PACKET_AUXDATA).
func withTag(frame, oob []byte) ([]byte, bool, error) {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, false, err
	}
	for _, m := range messages {
		if m.Header.Level != unix.SOL_PACKET || m.Header.Type != unix.PACKET_AUXDATA || len(m.Data) < int(unsafe.Sizeof(unix.TpacketAuxdata{})) {
			continue
		}
		status := binary.NativeEndian.Uint32(m.Data)
		partial := status&unix.TP_STATUS_CSUMNOTREADY != 0
		if status&unix.TP_STATUS_VLAN_VALID == 0 || len(frame) < 12 {
			return frame, partial, nil
		}
		tci, tpid := binary.NativeEndian.Uint16(m.Data[16:]), uint16(unix.ETH_P_8021Q)
		if status&unix.TP_STATUS_VLAN_TPID_VALID != 0 {
			tpid = binary.NativeEndian.Uint16(m.Data[18:])
		}
		out := append(make([]byte, 0, len(frame)+4), frame[:12]...)
		out = binary.BigEndian.AppendUint16(out, tpid)
		out = binary.BigEndian.AppendUint16(out, tci)
		return append(out, frame[12:]...), partial, nil
	}
	return frame, false, nil
}

// Close ends the tap.
func (t *Tap) Close() error { return t.socket.Close() }
