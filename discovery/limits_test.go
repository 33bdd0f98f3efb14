package discovery

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// sized is a Service of a namespace with a number of ports, each a frontend, made at a second.
func sized(id string, ports int, created int64) *corev1.Service {
	svc := aService(id)
	svc.CreationTimestamp = metav1.Unix(created, 0)
	for i := range ports {
		svc.Spec.Ports = append(svc.Spec.Ports, corev1.ServicePort{Name: fmt.Sprint("p", i), Port: int32(i + 1), NodePort: int32(30000 + i)})
	}
	return svc
}

func usePorts(svc *Service) Use { return Use{Endpoints: len(svc.Ports) > 0, Frontends: len(svc.Ports)} }

// served are the Services that are not refused.
func served(s *Store) (out []string) {
	for _, svc := range s.All() {
		if svc.Refused == "" {
			out = append(out, svc.Name.String())
		}
	}
	return out
}

func TestTheOldestServicesHaveTheRoom(t *testing.T) {
	limits := Limits{Frontends: Limit{Total: 10, Namespace: 6, Service: 5}}
	all := []*corev1.Service{
		sized("a/second", 3, 200), sized("a/third", 3, 300), sized("a/fourth", 1, 400),
		sized("b/first", 2, 100), sized("b/large", 6, 50), sized("c/last", 3, 500), sized("c/unknown", 1, 0),
	}
	want := "[a/second a/third b/first c/unknown]" // 3 + 3 + 2 + 1: c/last would be 11, and a has 6
	all[6].CreationTimestamp = metav1.Time{}
	for range 20 { // whatever came first
		rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		s := NewStore(Options{Use: usePorts, Limits: limits})
		for i, svc := range all {
			s.SetService(svc)
			if i%3 == 0 {
				s.Flush()
			}
		}
		s.Flush()
		if got := fmt.Sprint(served(s)); got != want {
			t.Fatalf("served: %s, want %s", got, want)
		}
	}
}

func TestRoomThatIsGivenUpGoesToTheNext(t *testing.T) {
	s := NewStore(Options{Use: usePorts, Limits: Limits{Frontends: Limit{Total: 4}}})
	s.SetService(sized("a/old", 3, 100))
	s.SetService(sized("b/young", 2, 200))
	s.Flush()
	if got := fmt.Sprint(served(s)); got != "[a/old]" {
		t.Fatalf("served: %s", got)
	}
	s.SetService(sized("a/old", 2, 100))
	if up := s.Flush(); len(up.Put) != 2 {
		t.Errorf("%d Services change, want both", len(up.Put))
	}
	if got := fmt.Sprint(served(s)); got != "[a/old b/young]" {
		t.Errorf("served: %s", got)
	}
	s.SetService(sized("a/old", 4, 100)) // an old Service that grows displaces a younger one
	s.Flush()
	if got := fmt.Sprint(served(s)); got != "[a/old]" {
		t.Errorf("served: %s", got)
	}
	s.DeleteService("a", "old")
	s.Flush()
	if got := fmt.Sprint(served(s)); got != "[b/young]" {
		t.Errorf("served: %s", got)
	}
	s.DeleteService("b", "young")
	s.Flush()
	if d := &s.demands; d.total != (demand{}) || len(d.byNamespace)+len(d.refused) > 0 {
		t.Errorf("%+v is left", d)
	}
}

// A Service beyond the limits is not merged: ports times endpoints would take the memory.
func TestEndpointsBeyondTheLimitAreNotMerged(t *testing.T) {
	s := NewStore(Options{Limits: Limits{Endpoints: Limit{Service: 20}}})
	s.SetService(sized("default/web", 5, 100))
	slice := func(endpoints int) *discoveryv1.EndpointSlice {
		sl := benchSlice(0, 0, endpoints, 0)
		sl.Labels[discoveryv1.LabelServiceName], sl.Ports = "web", nil
		for i := range 5 {
			sl.Ports = append(sl.Ports, discoveryv1.EndpointPort{Name: ptr(fmt.Sprint("p", i)), Port: ptr(int32(8080))})
		}
		return sl
	}
	for endpoints, refused := range map[int]string{4: "", 5: "asks for more than the 20 endpoints of Service ports that a Service may have"} {
		s.SetSlice(slice(endpoints))
		s.Flush()
		svc := s.Service(ServiceName{"default", "web"})
		if svc.Refused != refused || (len(svc.Ports[0].Endpoints) == 0) != (refused != "") {
			t.Errorf("%d endpoints: refused %q with %d endpoints", endpoints, svc.Refused, len(svc.Ports[0].Endpoints))
		}
	}
	unsupported := sized("default/web", 5, 100)
	unsupported.Annotations[AnnotationTopologyKeys] = "no label"
	s = NewStore(Options{Limits: Limits{Endpoints: Limit{Service: 20}}})
	s.SetService(unsupported)
	s.SetSlice(slice(5))
	s.Flush()
	if svc := s.Service(ServiceName{"default", "web"}); svc.Unsupported == "" || svc.Refused == "" || len(svc.Ports[0].Endpoints) > 0 {
		t.Errorf("a Service that is the kernel's for another reason: %+v", svc)
	}
	s.SetSlice(slice(6)) // or each endpoint that comes or goes would be another problem, and an Event
	if up := s.Flush(); up != nil {
		t.Errorf("a refused Service is another with each endpoint: %+v", up)
	}
}

func TestUnusedServicesAreNotMerged(t *testing.T) {
	uses := false
	s := NewStore(Options{Use: func(*Service) Use { return Use{Endpoints: uses} }})
	s.SetService(aService("web", "http:80"))
	s.SetSlice(aSlice("web-1", "web", "http:8080", "10.0.0.1"))
	s.Flush()
	name := ServiceName{"default", "web"}
	if svc := s.Service(name); !svc.Unused || len(svc.Ports[0].Endpoints) != 0 {
		t.Errorf("%+v", svc)
	}
	if svc := s.Merged(name); len(svc.Ports[0].Endpoints) != 1 {
		t.Errorf("at request: %+v", svc)
	}
	s.SetSlice(aSlice("web-1", "web", "http:8080", "10.0.0.2"))
	if up := s.Flush(); up != nil {
		t.Errorf("a change of endpoints that nothing needs: %+v", up)
	}
	uses = true
	s.Reconsider()
	if up := s.Flush(); up == nil || len(up.Put) != 1 || up.Put[0].Unused || len(up.Put[0].Ports[0].Endpoints) != 1 {
		t.Errorf("%+v", up)
	}
	uses = false
	s.Reconsider()
	if up := s.Flush(); up == nil || !up.Put[0].Unused {
		t.Errorf("%+v", up)
	}
}

// A source may be asked for a Service between the change and the update that tells of it.
func TestADeletedServiceIsAsLastHandedOut(t *testing.T) {
	s := NewStore(Options{Use: func(*Service) Use { return Use{} }})
	s.SetService(aService("default/web", "http:80"))
	s.Flush()
	s.DeleteService("default", "web")
	name := ServiceName{"default", "web"}
	if svc := s.Merged(name); svc == nil || svc != s.Service(name) {
		t.Errorf("before the update: %+v", svc)
	}
	s.Flush()
	if svc := s.Merged(name); svc != nil {
		t.Errorf("after the update: %+v", svc)
	}
}

// TestRandomChangesKeepTheAccount compares the store with another that is given all objects at once.
func TestRandomChangesKeepTheAccount(t *testing.T) {
	random := rand.New(rand.NewPCG(1, uint64(time.Now().UnixNano())))
	limits := Limits{Frontends: Limit{Total: 20, Namespace: 12, Service: 6}}
	objects := map[string]*corev1.Service{}
	s := NewStore(Options{Use: usePorts, Limits: limits})
	for range 500 {
		id := fmt.Sprintf("n%d/s%d", random.IntN(3), random.IntN(4))
		if random.IntN(4) == 0 {
			delete(objects, id)
			ns, name := split(id)
			s.DeleteService(ns, name)
		} else {
			objects[id] = sized(id, random.IntN(8), int64(random.IntN(5)))
			s.SetService(objects[id])
		}
		if random.IntN(3) == 0 {
			continue
		}
		s.Flush()
		fresh := NewStore(Options{Use: usePorts, Limits: limits})
		for _, svc := range objects {
			fresh.SetService(svc)
		}
		fresh.Flush()
		if got, want := served(s), served(fresh); !slices.Equal(got, want) {
			t.Fatalf("served: %v, a fresh store %v", got, want)
		}
	}
}
