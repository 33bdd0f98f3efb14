// Package header has views of packet headers as they lie in a frame, and the
// checksum arithmetic of a translating load balancer.
//
// Views are byte slices with accessors; nothing is copied or allocated. A view of fewer
// bytes than the header's length panics on access: callers check
// lengths once, in Parse.
//
// Checksums are computed over little-endian loads of the network-order bytes
// (RFC 1071 section 2(B): the one's complement sum does not depend on the byte
// order, as long as the result is stored the way it was loaded). A Delta in
// this package is the folded one's complement sum of ~old+new over the 16-bit
// words that changed (RFC 1624, equation 3).
package header
