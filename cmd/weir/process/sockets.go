package process

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"

	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/cmd/weir/sdnotify"
	"github.com/weirlb/weir/lb"
	"github.com/weirlb/weir/lb/xsk"
)

// Leave ends the packet path for the next process. Where the service manager keeps descriptors it
// gets the sockets: packets wait in them, and the next process goes on with them.
func Leave(l *lb.LB, notify *sdnotify.Notifier, log *slog.Logger) error {
	sockets, err := l.Leave(true)
	if sockets == nil {
		return err
	}
	description, e := json.Marshal(sockets)
	if e == nil {
		e = notify.Store(description, sockets.Files())
	}
	if e != nil {
		log.Warn("the next process opens its own sockets: packets are lost meanwhile", "err", e)
	}
	return errors.Join(err, sockets.Close())
}

// LastSockets are the sockets that the service manager has kept, nil for none. It is called before
// all that may fail: the sockets of a process that does not start end with it, so that the kernel
// has the packets when the hold of the last process is over.
func LastSockets() (*xsk.Transfer, error) {
	description, fds, err := sdnotify.Stored()
	if err == nil && description != nil {
		t := &xsk.Transfer{}
		if err = json.Unmarshal(description, t); err == nil {
			t.SetFiles(fds)
			return t, nil
		}
	}
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
	if err != nil {
		err = fmt.Errorf("sockets of the last process: packets are lost until others are open: %w", err)
	}
	return nil, err
}
