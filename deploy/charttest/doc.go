// Package charttest tests the Helm chart and the kustomize base beside it: what
// they render to is decoded strictly, compared, and created on a real API
// server. It is a module of its own, so that Helm and kustomize stay out of
// Weir's.
package charttest
