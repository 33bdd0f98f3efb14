// Package charttest tests the Helm chart and the kustomize base beside it: the rendered
// objects are decoded strictly, compared, and created on a real API server. It is a
// separate module, so that Helm and kustomize stay out of
// Weir's.
package charttest
