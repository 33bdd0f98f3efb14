package device

import (
	"encoding/binary"
	"fmt"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// CarrierChanges counts how often an interface of the calling thread's network namespace has
// got or lost its carrier (IFLA_CARRIER_CHANGES, Linux 3.15).
func CarrierChanges(index int) (uint32, error) {
	req := nl.NewNetlinkRequest(unix.RTM_GETLINK, 0)
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Index = int32(index)
	req.AddData(msg)
	list, err := req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWLINK)
	if err != nil {
		return 0, fmt.Errorf("carrier changes of interface %d: %w", index, err)
	}
	for _, text := range list {
		attrs, err := nl.ParseRouteAttr(text[unix.SizeofIfInfomsg:])
		if err != nil {
			return 0, fmt.Errorf("carrier changes of interface %d: %w", index, err)
		}
		for _, a := range attrs {
			if a.Attr.Type == unix.IFLA_CARRIER_CHANGES && len(a.Value) == 4 {
				return binary.NativeEndian.Uint32(a.Value), nil
			}
		}
	}
	return 0, fmt.Errorf("carrier changes of interface %d: the kernel does not say", index)
}
