package xsk

import (
	"encoding/binary"
	"errors"
	"testing"

	"golang.org/x/sys/unix"
)

// message makes a netlink message with a generic netlink header.
func message(typ uint16, body []byte) []byte {
	b := binary.NativeEndian.AppendUint32(nil, uint32(netlinkHeaderLen+len(body)))
	b = binary.NativeEndian.AppendUint16(b, typ)
	b = append(b, make([]byte, 10)...)
	b = append(b, body...)
	return append(b, make([]byte, align4(len(body))-len(body))...)
}

func errnoBody(errno unix.Errno) []byte {
	return binary.NativeEndian.AppendUint32(nil, uint32(-int32(errno)))
}

func TestNetlinkAnswers(t *testing.T) {
	data := message(0x20, attr32(make([]byte, genlHeaderLen), 1, 42))
	for name, c := range map[string]struct {
		in   []byte
		done bool
		err  error
		seen int
	}{
		"data, more to come":    {data, false, nil, 1},
		"data and the end":      {append(append([]byte{}, data...), message(unix.NLMSG_DONE, errnoBody(0))...), true, nil, 1},
		"acknowledged":          {message(unix.NLMSG_ERROR, errnoBody(0)), true, nil, 0},
		"refused":               {message(unix.NLMSG_ERROR, errnoBody(unix.ENODEV)), true, unix.ENODEV, 0},
		"family unknown":        {message(unix.NLMSG_ERROR, errnoBody(unix.ENOENT)), true, ErrNoNetdevFamily, 0},
		"command unknown":       {message(unix.NLMSG_ERROR, errnoBody(unix.EOPNOTSUPP)), true, ErrNoNetdevFamily, 0},
		"nothing":               {nil, false, nil, 0},
		"attribute cut short":   {message(0x20, []byte{0, 0, 0, 0, 9, 0, 1, 0, 1}), false, nil, 0},
		"attribute of length 0": {message(0x20, make([]byte, 16)), false, nil, 0},
	} {
		t.Run(name, func(t *testing.T) {
			seen := 0
			done, err := parseMessages(c.in, func(typ uint16, v []byte) {
				seen++
				if typ != 1 || binary.NativeEndian.Uint32(v) != 42 {
					t.Errorf("attribute %d: %v", typ, v)
				}
			}, nil)
			if done != c.done || !errors.Is(err, c.err) || seen != c.seen {
				t.Errorf("done %v, %v, %d attributes; want %v, %v, %d", done, err, seen, c.done, c.err, c.seen)
			}
		})
	}
}

func FuzzNetlinkAnswer(f *testing.F) {
	f.Add(message(0x20, attr32(make([]byte, genlHeaderLen), 1, 42)))
	f.Add(message(unix.NLMSG_ERROR, errnoBody(unix.ENOENT)))
	f.Add(message(unix.NLMSG_DONE, nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		_, _ = parseMessages(b, func(_ uint16, v []byte) {
			if len(v) > len(b) {
				t.Errorf("attribute of %d bytes in %d", len(v), len(b))
			}
		}, func() {})
	})
}
