package discovery

//lint:file-ignore SA1019 Endpoints are deprecated, and served as long as people write them.

import corev1 "k8s.io/api/core/v1"

// service is all data of a Service name.
type service struct {
	name      ServiceName
	spec      *spec // nil: no such Service, or not ours
	good      goodSpec
	slices    map[string]*sliceData
	endpoints *corev1.Endpoints
	mirrored  []*sliceData // of endpoints, while they are served
	warnings  []string     // about the mirrored endpoints
	out       *Service     // as last handed out
	queued    bool

	use      Use
	matches  [][]match // of spec's ports, between weigh and merge
	demand   demand
	demanded int64  // created, as of demand
	tooLarge string // why it is beyond the limits of a Service, "" if it is not
	noRoom   string // why the stores have no room for it, "" if they have
}

// goodSpec is a Service as it last was without errors.
type goodSpec struct {
	spec *spec           // nil: it never was
	obj  *corev1.Service // of which spec is made
}

// of returns the spec for another version of the same Service, nil if obj is another of the name.
func (g goodSpec) of(obj *corev1.Service) *spec {
	if g.spec == nil || g.obj.UID != obj.UID {
		return nil
	}
	return g.spec
}
