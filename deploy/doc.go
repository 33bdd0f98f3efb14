// Package deploy holds what Weir is deployed with, and the tests of it: the
// Helm chart (helm), the same as a kustomize base (kustomize), the container
// image (image), the systemd unit (systemd) and the Grafana dashboard
// (grafana).
package deploy
