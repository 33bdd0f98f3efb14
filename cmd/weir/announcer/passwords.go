package announcer

import (
	"crypto/sha256"
	"fmt"

	"github.com/weirlb/weir/cmd/weir/config"
)

// passwordsOf are digests of the password files of routers. A file that cannot be read differs
// from each that can.
func passwordsOf(peers []config.Peer) (digests [][sha256.Size]byte) {
	for i := range peers {
		password, err := peers[i].Password()
		if err != nil {
			password = "unread: " + err.Error()
		}
		digests = append(digests, sha256.Sum256([]byte(password)))
	}
	return digests
}

// ChangedPasswords names the password files that are not those of the start any more. A session
// keeps its key, and the kernel checks it: nothing is seen of the change until the session ends,
// perhaps weeks later and on all nodes at once, and none begins.
func (a *Announcer) ChangedPasswords(c *config.Announce) (fields []string) {
	if a == nil {
		return nil
	}
	for i, digest := range passwordsOf(c.Peers) {
		if i < len(a.passwords) && a.passwords[i] != digest {
			fields = append(fields, fmt.Sprintf("announce.peers[%d].passwordFile", i))
		}
	}
	return fields
}
