package chaos

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/perf/netlab"
	"github.com/weirlb/weir/perf/netlab/patience"
)

// rtoMax is the longest time between two retransmissions. The kernel doubles this time up to
// two minutes: after some faults a connection waits for most of a minute, and it fails if the
// next fault begins by then, whatever Weir does.
const rtoMax = 2 * time.Second

// recoverSoon lets the TCP of a namespace go on soon after a fault, whatever the machine is set to.
//
// The time between retransmissions is limited. Kernels before 6.15 cannot: connections have more
// time there.
//
// The congestion control is Reno, which every kernel has. BBR estimates the bandwidth of a fault
// that only larger packets are lost by, a packet in 2 s, and paces answers of two packets by it for
// seconds after the fault.
func recoverSoon(n *netlab.Namespace) error {
	if err := n.SetSysctl("net/ipv4/tcp_congestion_control", "reno"); err != nil {
		return err
	}
	err := n.SetSysctl("net/ipv4/tcp_rto_max_ms", fmt.Sprint(rtoMax.Milliseconds()))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// dialer is that of the clients. A client that waits for an answer has nothing to send again: its
// keepalives find out that the endpoint has forgotten the connection, as early as retransmissions
// would. Silence ends no connection.
var dialer = &net.Dialer{KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: rtoMax, Interval: rtoMax, Count: 127}}

func backoffIsLimited() bool {
	_, err := os.Stat("/proc/sys/net/ipv4/tcp_rto_max_ms")
	return err == nil
}

// exchangeWithin is how long an exchange may take, however many faults delay it.
func exchangeWithin() time.Duration {
	if !backoffIsLimited() {
		return 5 * time.Minute // two retransmissions with the longest time between them
	}
	return min(time.Minute, patience.For(15*time.Second))
}

// stateOf describes a TCP connection that failed.
func stateOf(c net.Conn) string {
	raw, ok := c.(syscall.Conn)
	if !ok {
		return "no socket"
	}
	control, err := raw.SyscallConn()
	if err != nil {
		return err.Error()
	}
	var info *unix.TCPInfo
	if failed := control.Control(func(fd uintptr) { info, err = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO) }); failed != nil {
		return failed.Error()
	}
	if err != nil {
		return err.Error()
	}
	return fmt.Sprintf("unacknowledged %d, retransmissions %d in a row, backoff %d, RTO %v, last segment received %v ago",
		info.Unacked, info.Retransmits, info.Backoff, time.Duration(info.Rto)*time.Microsecond,
		time.Duration(info.Last_data_recv)*time.Millisecond)
}
