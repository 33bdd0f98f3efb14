package discovery

// Feature is a part of the Service API that only some data paths honor. A Service that
// needs a missing feature is left to the kernel as a whole
// (Service.Unsupported): it must never be served more openly than it is
// written.
type Feature uint32

// Features, to be or-ed into Options.Supported.
const (
	// FeatureSourceRanges is spec.loadBalancerSourceRanges.
	FeatureSourceRanges Feature = 1 << iota
	// FeatureSCTP is ports with protocol SCTP.
	FeatureSCTP
	// FeatureClientIPAffinity is spec.sessionAffinity: ClientIP.
	FeatureClientIPAffinity
	// FeatureDNAT and the next are values of weir.dev/forwarding-mode; nat
	// is always there.
	FeatureDNAT
	FeatureL2DSR
	FeatureIPIP
	FeatureGUE
	// FeatureQUICConnectionID and FeatureMSSClamp are weir.dev/quic-cid and
	// weir.dev/mss-clamp.
	FeatureQUICConnectionID
	FeatureMSSClamp
)

// forwardingModes are the values of weir.dev/forwarding-mode with the feature that each
// needs.
var forwardingModes = map[string]Feature{
	"nat":   0,
	"dnat":  FeatureDNAT,
	"l2dsr": FeatureL2DSR,
	"ipip":  FeatureIPIP,
	"gue":   FeatureGUE,
}
