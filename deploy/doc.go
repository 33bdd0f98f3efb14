// Package deploy holds the means to deploy Weir, and the tests of them: the
// Helm chart (helm), the same as a kustomize base (kustomize), the container
// image (image), the systemd unit (systemd), packages (release) and the Grafana
// dashboard (grafana). The program has the comments of the sample configuration.
package deploy

import _ "embed"

// Sample is the sample configuration, with a comment for each field that needs it.
//
//go:embed weir.yaml
var Sample []byte
