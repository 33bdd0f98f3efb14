package flowcache

import (
	"errors"
	"io/fs"
	"os"

	"github.com/weirlb/weir/conntrack"
)

// ErrOff is why a table is in the file when the flow cache is off: the MemoryErr of a
// conntrack.Restoration.
var ErrOff = errors.New("the flow cache is off")

// Earlier is the table that an earlier process has pinned, for a process without a flow
// cache: a conntrack.Memory that gives no memory, so that the connections pass to the file.
type Earlier struct {
	pins *pins
	last array
}

var (
	_ conntrack.Memory = (*Cache)(nil)
	_ conntrack.Memory = (*Earlier)(nil)
)

// OpenEarlier returns the table that an earlier process has pinned in dir, nil if there is
// none.
func OpenEarlier(dir string) (*Earlier, error) {
	if checkBPFFS(dir) != nil {
		return nil, nil // then nothing can be pinned there
	}
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil, nil // openPins would make it, and a start that fails leaves nothing
	}
	p, err := openPins(dir)
	if err != nil {
		return nil, err
	}
	last, err := p.load()
	if err != nil || last.m == nil {
		return nil, errors.Join(err, p.close())
	}
	return &Earlier{p, last}, nil
}

// Last is the table.
func (e *Earlier) Last() []byte { return e.last.b }

// Table returns ErrOff.
func (e *Earlier) Table(int64) ([]byte, error) { return nil, ErrOff }

// Index returns ErrOff.
func (e *Earlier) Index(int64) ([]byte, error) { return nil, ErrOff }

// Keep returns ErrOff.
func (e *Earlier) Keep() error { return ErrOff }

// Drop removes the pin.
func (e *Earlier) Drop() error { return e.pins.remove() }

// Close frees the memory, after the flow table was opened.
func (e *Earlier) Close() error { return errors.Join(e.last.close(), e.pins.close()) }
