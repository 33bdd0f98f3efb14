package config

import "strings"

// noSecretFile does not repeat the value: a password in place of the path is a likely mistake,
// and errors go into logs and the status.
const noSecretFile = "must be an absolute path, or empty"

// secretFile reports whether a field has the path of a file with a secret.
func secretFile(path string) bool {
	return strings.HasSuffix(path, ".passwordFile") || strings.HasSuffix(path, ".tokenFile") || strings.HasSuffix(path, ".keyFile")
}
