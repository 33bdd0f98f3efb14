package api

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"

	"github.com/weirlb/weir/lb/counter"
)

// Worker is a packet loop. The JSON object has a field for every counter, by
// counter.Info.Field, beside those below.
type Worker struct {
	ID        int               // id
	CPU       int               // cpu; -1: not pinned
	Counters  counter.Values    //
	BusyShare float64           // busyShare: part of the uptime in counter.Busy
	Drops     map[string]uint64 // drops: by reason; only those that occurred
}

// MarshalJSON implements json.Marshaler.
func (w Worker) MarshalJSON() ([]byte, error) {
	b := fmt.Appendf(nil, `{"id":%d,"cpu":%d`, w.ID, w.CPU)
	for c := range counter.Counters {
		info := c.Info()
		b = fmt.Appendf(b, `,%q:`, info.Field)
		if info.Nanoseconds {
			b = strconv.AppendFloat(b, float64(w.Counters[c])/1e9, 'g', -1, 64)
		} else {
			b = strconv.AppendUint(b, w.Counters[c], 10)
		}
	}

	rest, err := json.Marshal(struct {
		BusyShare float64           `json:"busyShare"`
		Drops     map[string]uint64 `json:"drops"`
	}{w.BusyShare, w.Drops})
	if err != nil {
		return nil, err
	}
	rest[0] = ',' // in place of the brace
	return append(b, rest...), nil
}

// UnmarshalJSON implements json.Unmarshaler. A counter that the object does not
// have is 0: a daemon of another version has other counters.
func (w *Worker) UnmarshalJSON(data []byte) error {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(data, &fields); err != nil {
		return err
	}
	read := func(name string, to any) error {
		raw, ok := fields[name]
		if !ok {
			return nil
		}
		if err := json.Unmarshal(raw, to); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		return nil
	}

	for c := range counter.Counters {
		info := c.Info()
		if !info.Nanoseconds {
			if err := read(info.Field, &w.Counters[c]); err != nil {
				return err
			}
			continue
		}
		var seconds float64
		if err := read(info.Field, &seconds); err != nil {
			return err
		}
		w.Counters[c] = uint64(math.Round(seconds * 1e9))
	}
	for name, to := range map[string]any{
		"id": &w.ID, "cpu": &w.CPU, "busyShare": &w.BusyShare, "drops": &w.Drops,
	} {
		if err := read(name, to); err != nil {
			return err
		}
	}
	return nil
}
