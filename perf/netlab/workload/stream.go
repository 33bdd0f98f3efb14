// Package workload holds the servers and clients that drive traffic through a
// lab: plain HTTP, TCP and UDP, over kernel sockets. Clients never retry, and
// every byte can be checked at the other end.
package workload

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"io"
	"math/rand/v2"
)

// NewStream is an endless stream of bytes that depends on seed alone. It is
// incompressible and has no period that could hide a swapped block.
func NewStream(seed uint64) io.Reader {
	var key [32]byte
	binary.LittleEndian.PutUint64(key[:], seed)
	return rand.NewChaCha8(key)
}

// StreamSum is the hexadecimal SHA-256 of the first n bytes of a stream.
func StreamSum(seed uint64, n int64) string {
	h := sha256.New()
	io.CopyN(h, NewStream(seed), n) // neither side can fail
	return hex.EncodeToString(h.Sum(nil))
}
