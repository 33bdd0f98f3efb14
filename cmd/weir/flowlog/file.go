package flowlog

import (
	"encoding/json"
	"fmt"
	"os"
)

// file is a sink of JSON lines. It is opened again when another file, or none, has the path: so
// whoever rotates it need not tell.
type file struct {
	path string
	f    *os.File
	buf  []byte
}

func (w *file) write(events []Event) (lost int, err error) {
	if err := w.open(); err != nil {
		return len(events), err
	}
	w.buf = w.buf[:0]
	for i := range events {
		line, err := json.Marshal(&events[i])
		if err != nil {
			return len(events), err
		}
		w.buf = append(append(w.buf, line...), '\n')
	}
	n, err := w.f.Write(w.buf)
	if err == nil {
		return 0, nil
	}
	// Lines that are not whole would spoil the next: they are taken back, where that can be done.
	if at, e := w.f.Seek(0, 2); e == nil && n > 0 {
		_ = w.f.Truncate(at - int64(n))
	}
	return len(events), err
}

// open opens the file, unless it is still the one at the path.
func (w *file) open() error {
	if w.f != nil {
		mine, err := w.f.Stat()
		if now, e := os.Stat(w.path); err == nil && e == nil && os.SameFile(mine, now) {
			return nil
		}
		w.close()
	}
	// A named pipe without a reader would hold the open.
	if now, err := os.Stat(w.path); err == nil && !now.Mode().IsRegular() {
		return fmt.Errorf("%s is not a regular file", w.path)
	}
	f, err := os.OpenFile(w.path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o640)
	w.f = f
	return err
}

func (w *file) close() {
	if w.f != nil {
		_ = w.f.Close()
		w.f = nil
	}
}
