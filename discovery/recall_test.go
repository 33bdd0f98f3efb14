package discovery

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// A process that starts with the last valid version of a Service serves it as the process before, and
// hands that version on. It means nothing for another Service of the name.
func TestARestartServesTheLastValidVersion(t *testing.T) {
	version := func(uid, value string) *corev1.Service {
		return given(func(s *corev1.Service) {
			s.UID = "u"
			if uid != "" {
				s.UID = "v"
			}
			s.Annotations[AnnotationMaxConnections] = value
		})
	}
	first := NewStore(Options{Supported: ^Feature(0)})
	feed(first, version("", "1000"))
	feed(first, version("", "1k"))
	first.Flush()
	if v := first.Valid(); len(v) != 1 || v[0].Annotations[AnnotationMaxConnections] != "1000" {
		t.Fatalf("kept: %v", v)
	}
	for generation, s := 0, first; generation < 3; generation++ {
		if svc := web(s); svc.Unsupported != "" || svc.Options.MaxConnections != 1000 || len(svc.Errors) != 1 {
			t.Errorf("generation %d: %+v, unsupported %q, errors %q", generation, svc.Options, svc.Unsupported, svc.Errors)
		}
		next := NewStore(Options{Supported: ^Feature(0)})
		for _, v := range s.Valid() {
			next.Recall(v)
		}
		if up := next.Flush(); up != nil && len(up.Put) > 0 {
			t.Error("a recalled version is served before the Service is told")
		}
		feed(next, version("", "1k"))
		next.Flush()
		s = next
	}
	// Deleted and made again, with or without an event of the deletion.
	feed(first, version("another", "1k"))
	first.Flush()
	if svc := web(first); svc.Unsupported == "" || len(first.Valid()) != 0 {
		t.Errorf("a Service made again serves the version of the last: %+v", svc.Options)
	}
	// A version that is not valid is not believed.
	s := NewStore(Options{Supported: ^Feature(0)})
	s.Recall(version("", "2k"))
	feed(s, version("", "1k"))
	s.Flush()
	if svc := web(s); svc.Unsupported == "" || len(s.Valid()) != 0 {
		t.Errorf("an invalid version is recalled: %+v", svc.Options)
	}
}
