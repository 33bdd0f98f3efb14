// Package addresspool chooses the load balancer addresses of Services. It is pure: no I/O,
// no clock, no API server.
//
// The status of Services is the only record. An [Allocator] is made empty, and learns by
// [Allocator.Adopt] which addresses Services have; then [Allocator.Reconcile] says
// which addresses a Service should have. An address that was given stays: a pool may
// shrink or go away, the allocator may be made anew, and another Service may be deleted.
// Only the Service itself can ask for another address, and only a Service
// that is older takes an address away that both have.
//
// [Decode] reads the objects of MetalLB (group metallb.io) and those of Weir (weir.dev), which have the same
// fields.
package addresspool
