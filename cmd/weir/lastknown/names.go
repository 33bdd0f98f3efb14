package lastknown

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"

	"github.com/weirlb/weir/conntrack/statefile"
	"github.com/weirlb/weir/discovery/names"
)

// NamesFile is the name of the file of endpoints by name in the state directory. Its form is that of File,
// with the answers as an array of JSON in place of the records.
const NamesFile = "names.state"

// NamesVersion is that of the format. A file of another version is not read.
const NamesVersion = 1

// MaxNamesFileSize bounds the file that is read, in bytes: names.MaxKept answers have no more.
const MaxNamesFileSize = 8 << 20

const namesKind = "WeirNames"

// SaveNames writes answers for the next process, and returns the size of the file.
func SaveNames(path string, at time.Time, list []names.Kept) (size int64, err error) {
	var b bytes.Buffer
	body, err := json.Marshal(list)
	if err == nil {
		err = begin(&b, &Header{Kind: namesKind, Version: NamesVersion, Time: at.UTC(), Objects: len(list)})
	}
	if err == nil {
		b.Write(body)
		err = write(path, end(&b))
	}
	if err != nil {
		return 0, fmt.Errorf("answers of the DNS: %w", err)
	}
	return int64(b.Len()), nil
}

// LoadNames reads the answers of the process before. A file that is corrupt, or that another user could have
// written, is set aside as PATH.corrupt, and the error says so.
func LoadNames(path string) ([]names.Kept, error) {
	removeTemporary(path)
	var list []names.Kept
	data, err := contents(path, MaxNamesFileSize)
	if err == nil {
		list, err = decodeNames(data)
	}
	if err != nil {
		return nil, fmt.Errorf("answers of the DNS: %w", setAside(statefile.Names, path, err))
	}
	return list, nil
}

func decodeNames(data []byte) (list []names.Kept, err error) {
	h, body, err := open(data, namesKind, NamesVersion)
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(body, &list); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	if len(list) != h.Objects || len(list) > names.MaxKept {
		return nil, fmt.Errorf("%w: %d answers, its header says %d, at most %d", ErrCorrupt, len(list), h.Objects, names.MaxKept)
	}
	for i := range list {
		if err := list[i].Check(); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrCorrupt, err)
		}
	}
	return list, nil
}
