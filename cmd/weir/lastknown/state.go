// Package lastknown keeps the last known state of a cluster in a file, for a
// start while the API server is unreachable.
//
// A file is a line of JSON (Header), then the objects, trimmed to the fields that Weir
// reads, as records of a byte for the kind, the length as a varint and the object in its
// protobuf encoding, and last the SHA-256 of everything before. It is written under another
// name, synced, and renamed, mode 0600: at any moment the file is complete, and an
// incomplete file is never half-used.
//
// Beside it a small file (SeenSuffix) has the time at which this very state was
// last known to be the cluster's. The large file need not be written for that.
package lastknown

//lint:file-ignore SA1019 Endpoints are deprecated, and watched where that is asked for.

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/weirlb/weir/conntrack/statefile"
	"github.com/weirlb/weir/discovery/kube/cluster"
)

// Version is that of the format. A file of another version is not read.
const Version = 1

// MaxFileSize bounds the file that is read, in bytes: some ten million endpoints.
const MaxFileSize = 1 << 30

// File is the name of the file in the state directory.
const File = "cluster.state"

// Header is the first line of a file.
type Header struct {
	Kind    string    `json:"kind"` // WeirState
	Version int       `json:"version"`
	Cluster string    `json:"cluster"` // the argument of Save
	Time    time.Time `json:"time"`    // when this was known to be the cluster's state
	Objects int       `json:"objects"`
}

const headerKind = "WeirState"

// Errors of Load, beside those of the file system.
var (
	// ErrCorrupt means that the file is damaged, or none of ours.
	ErrCorrupt = errors.New("corrupt")
	// ErrOther means that the file is complete and does not fit: another
	// cluster, another choice of objects, or another version of the format.
	ErrOther = errors.New("of another cluster or version")

	errVersion = fmt.Errorf("%w", ErrOther)
)

// Kinds of records.
const (
	recordService   = 'S'
	recordSlice     = 'E'
	recordNode      = 'N'
	recordEndpoints = 'L'
	recordValid     = 'V' // a Service as it last was without errors
)

// Save writes o as the state of cluster at the given time. cluster is any
// text; Load returns the state only for the same text.
func Save(path, cluster string, at time.Time, o *cluster.Objects) error {
	_, _, err := save(path, cluster, at, o)
	return err
}

// save returns the checksum and the size of the written state.
func save(path, cluster string, at time.Time, o *cluster.Objects) (sum []byte, size int64, err error) {
	data, err := encode(cluster, at, o)
	if err == nil {
		err = write(path, data)
	}
	if err != nil {
		return nil, 0, fmt.Errorf("last known state: %w", err)
	}
	return data[len(data)-sha256.Size:], int64(len(data)), nil
}

// write writes a file into a directory that no other user may write.
func write(path string, data []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	if err := statefile.Directory(filepath.Dir(path)); err != nil {
		return err
	}
	return replace(path, data)
}

// temporary follows the name of a file that is being written.
const temporary = ".new-"

// removeTemporary removes the temporary files of processes that were killed while they wrote. A
// process that lives has a lock on the file.
func removeTemporary(path string) {
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		return
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), filepath.Base(path)+temporary) && e.Type().IsRegular() {
			removeUnlocked(filepath.Join(filepath.Dir(path), e.Name()))
		}
	}
}

// removeUnlocked removes a file on which no process has a lock.
func removeUnlocked(name string) {
	fd, err := unix.Open(name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	if unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) == nil {
		_ = os.Remove(name)
	}
}

// createTemporary creates a temporary file, mode 0600, with a lock.
func createTemporary(path string) (*os.File, error) {
	for {
		f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+temporary+"*")
		if err != nil {
			return nil, err
		}
		// Another process may have removed the file before it was locked.
		var st unix.Stat_t
		if unix.Flock(int(f.Fd()), unix.LOCK_EX) != nil || unix.Fstat(int(f.Fd()), &st) != nil || st.Nlink > 0 {
			return f, nil
		}
		_ = f.Close()
	}
}

// replace writes a file so that a crash leaves the old file or the new file.
func replace(path string, data []byte) (err error) {
	f, err := createTemporary(path)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name())
		}
	}()
	defer f.Close() // not before it has its name: the lock ends
	if _, err = f.Write(data); err != nil {
		return err
	}
	if err = f.Sync(); err != nil {
		return err
	}
	if err = os.Rename(f.Name(), path); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer dir.Close()
	return dir.Sync()
}

type message interface{ Marshal() ([]byte, error) }

func encode(cluster string, at time.Time, o *cluster.Objects) ([]byte, error) {
	var b bytes.Buffer
	err := begin(&b, &Header{headerKind, Version, cluster, at.UTC(), o.Len()})
	record := func(kind byte, m message) {
		body, e := m.Marshal()
		err = errors.Join(err, e)
		b.WriteByte(kind)
		b.Write(binary.AppendUvarint(nil, uint64(len(body))))
		b.Write(body)
	}
	for _, n := range o.Nodes {
		record(recordNode, n)
	}
	for _, s := range o.Services {
		record(recordService, s)
	}
	for _, s := range o.Slices {
		record(recordSlice, s)
	}
	for _, e := range o.Endpoints {
		record(recordEndpoints, e)
	}
	for _, s := range o.Valid {
		record(recordValid, s)
	}
	return end(&b), err
}

// begin writes the first line of a file.
func begin(b *bytes.Buffer, h *Header) error {
	head, err := json.Marshal(h)
	b.Write(append(head, '\n'))
	return err
}

// end writes the checksum, and returns the contents of the file.
func end(b *bytes.Buffer) []byte {
	sum := sha256.Sum256(b.Bytes())
	b.Write(sum[:])
	return b.Bytes()
}

// Load reads the state of cluster and the time at which it was last known to be
// that. A file that is corrupt, or that another user could have written, is set aside as
// PATH.corrupt, and the error says so. Another process may be saving to path.
func Load(path, cluster string) (*cluster.Objects, time.Time, error) {
	removeTemporary(path)
	removeTemporary(path + SeenSuffix)
	o, h, sum, err := read(path)
	switch {
	case err != nil:
		return nil, time.Time{}, fmt.Errorf("last known state: %w", setAside(statefile.ClusterState, path, err))
	case h.Cluster != cluster:
		statefile.Count(statefile.ClusterState, statefile.Other)
		return nil, time.Time{}, fmt.Errorf("last known state: %s: %w: it is of %s, this is %s", path, ErrOther, h.Cluster, cluster)
	}
	at := h.Time
	if seen := readSeen(path, sum); seen.After(at) {
		at = seen
	}
	return o, at, nil
}

// setAside is err of a file that is not read. One that is corrupt or not trusted gets another name.
func setAside(file statefile.File, path string, err error) error {
	switch {
	case errors.Is(err, statefile.ErrDirectory):
		return err
	case errors.Is(err, ErrCorrupt), errors.Is(err, statefile.ErrUntrusted):
		aside := path + ".corrupt"
		if e := statefile.SetAside(file, statefile.CauseOf(err), path, aside); e != nil {
			return fmt.Errorf("%s: %w (and cannot be set aside: %w)", path, err, e)
		}
		return fmt.Errorf("%s: %w: set aside as %s", path, err, aside)
	case errors.Is(err, errVersion):
		statefile.Count(file, statefile.Layout)
	}
	return err
}

func read(path string) (o *cluster.Objects, h *Header, sum []byte, err error) {
	data, err := contents(path, MaxFileSize)
	if err != nil {
		return nil, nil, nil, err
	}
	if o, h, err = decode(data); err != nil {
		return nil, nil, nil, err
	}
	return o, h, data[len(data)-sha256.Size:], nil
}

// contents reads a file of at most limit bytes.
func contents(path string, limit int64) ([]byte, error) {
	f, err := statefile.Open(path, os.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(data)) > limit {
		err = fmt.Errorf("%w: larger than %d bytes", ErrCorrupt, limit)
	}
	return data, err
}

// open returns the header of a file of a kind and version, and all between it and the checksum.
func open(data []byte, kind string, version int) (h *Header, records []byte, err error) {
	if len(data) < sha256.Size {
		return nil, nil, fmt.Errorf("%w: %d bytes are too few", ErrCorrupt, len(data))
	}
	body, sum := data[:len(data)-sha256.Size], data[len(data)-sha256.Size:]
	if got := sha256.Sum256(body); !bytes.Equal(got[:], sum) {
		return nil, nil, fmt.Errorf("%w: its checksum is wrong", ErrCorrupt)
	}
	line, records, ok := bytes.Cut(body, []byte{'\n'})
	if !ok {
		return nil, nil, fmt.Errorf("%w: no header", ErrCorrupt)
	}
	h = &Header{}
	if err := json.Unmarshal(line, h); err != nil || h.Kind != kind {
		return nil, nil, fmt.Errorf("%w: its header is not that of a %s", ErrCorrupt, kind)
	}
	if h.Version != version {
		return nil, nil, fmt.Errorf("%w: format %d, this is %d", errVersion, h.Version, version)
	}
	return h, records, nil
}

func decode(data []byte) (*cluster.Objects, *Header, error) {
	h, records, err := open(data, headerKind, Version)
	if err != nil {
		return nil, nil, err
	}
	o, err := decodeRecords(records)
	if err == nil && o.Len() != h.Objects {
		err = fmt.Errorf("%w: %d objects, its header says %d", ErrCorrupt, o.Len(), h.Objects)
	}
	if err != nil {
		return nil, nil, err
	}
	return o, h, nil
}

func decodeRecords(b []byte) (*cluster.Objects, error) {
	o := &cluster.Objects{}
	for len(b) > 0 {
		kind := b[0]
		size, n := binary.Uvarint(b[1:])
		if n <= 0 || size > uint64(len(b)-1-n) {
			return nil, fmt.Errorf("%w: a record is cut short", ErrCorrupt)
		}
		body := b[1+n : 1+n+int(size)]
		b = b[1+n+int(size):]
		if err := decodeRecord(o, kind, body); err != nil {
			return nil, err
		}
	}
	return o, nil
}

func decodeRecord(o *cluster.Objects, kind byte, body []byte) (err error) {
	switch kind {
	case recordNode:
		n := &corev1.Node{}
		err = n.Unmarshal(body)
		o.Nodes = append(o.Nodes, n)
	case recordService, recordValid:
		s := &corev1.Service{}
		err = s.Unmarshal(body)
		if kind == recordValid {
			o.Valid = append(o.Valid, s)
		} else {
			o.Services = append(o.Services, s)
		}
	case recordSlice:
		s := &discoveryv1.EndpointSlice{}
		err = s.Unmarshal(body)
		o.Slices = append(o.Slices, s)
	case recordEndpoints:
		e := &corev1.Endpoints{}
		err = e.Unmarshal(body)
		o.Endpoints = append(o.Endpoints, e)
	default:
		err = fmt.Errorf("a record of unknown kind %q", kind)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	return nil
}
