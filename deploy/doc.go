// Package deploy holds the means to deploy Weir, and the tests of them: the
// Helm chart (helm), the same as a kustomize base (kustomize), the container
// image (image), the systemd unit (systemd), packages (release) and the Grafana
// dashboard (grafana).
package deploy
