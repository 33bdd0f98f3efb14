package answers

import (
	"context"
	"errors"
	"testing"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/lb/tap"
)

func nameless(int32) string { return "" }

// A capture ends in time also where packets come as fast as they are read.
func TestACaptureUnderLoadEndsInTime(t *testing.T) {
	records, err := tap.New(tap.Config{SnapLen: 64, Bytes: 1 << 20, Workers: 1})
	if err != nil {
		t.Fatal(err)
	}
	arrive := func() {
		if r := records.Begin(0, 0, 0, -1); r != nil {
			records.Commit(0)
		}
	}
	arrive()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	packets, last := 0, false
	err = readTap(ctx, records, &api.PacketQuery{Packets: api.MaxPackets}, func(*tap.Record) *api.Packet { return &api.Packet{} }, nameless,
		func(p *api.Packet, _ api.PacketAccount) error {
			if last = p == nil; last {
				return nil
			}
			arrive()
			if packets++; packets == 10 {
				cancel()
			}
			if packets > 1000 {
				return errors.New("it does not end")
			}
			return nil
		})
	if err != nil || packets != 10 || !last {
		t.Errorf("%d packets, the account last: %v, %v", packets, last, err)
	}
}
