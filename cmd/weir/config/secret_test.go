package config

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A password in place of the name of a file with it, or in a field that does not exist, is not
// repeated by the error, which goes into logs.
func TestErrorsDoNotRepeatPasswords(t *testing.T) {
	for _, secret := range []string{"hunter2hunter2", "4815162342"} {
		for name, text := range map[string]string{
			"passwordFile":       "announce: {speaker: bgp, asn: 1, peers: [{address: 10.0.0.1, asn: 2, passwordFile: %s}]}",
			"passwordFile, text": "announce: {speaker: bgp, asn: 1, peers: [{address: 10.0.0.1, asn: 2, passwordFile: %q}]}",
			"password":           "announce: {speaker: bgp, asn: 1, peers: [{address: 10.0.0.1, asn: 2, password: %s}]}",
			"a list":             "announce: {speaker: bgp, asn: 1, peers: [{address: 10.0.0.1, asn: 2, passwordFile: [%s]}]}",
			"keyFile":            "announce: {l2: {interfaces: [eth0], keyFile: %s}}",
			"keyFile, text":      "announce: {l2: {interfaces: [eth0], keyFile: %q}}",
			"tokenFile":          "statusPage: {bindAddress: \"127.0.0.1:9466\", tokenFile: %s}",
			"tokenFile, text":    "statusPage: {bindAddress: \"127.0.0.1:9466\", tokenFile: %q}",
		} {
			t.Run(name, func(t *testing.T) {
				file := filepath.Join(t.TempDir(), "config.yaml")
				header := "apiVersion: weir.dev/v1alpha1\nkind: WeirConfiguration\ninterfaces: [{name: eth0}]\n"
				if err := os.WriteFile(file, []byte(header+fmt.Sprintf(text, secret)), 0o600); err != nil {
					t.Fatal(err)
				}
				c, err := Read(file)
				if err == nil {
					err = c.Validate().Err()
				}
				if err == nil || strings.Contains(err.Error(), secret) || !strings.Contains(err.Error(), strings.Split(name, ",")[0]) && name != "a list" {
					t.Errorf("%v", err)
				}
			})
		}
	}
}
