package cluster

import (
	"bufio"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weirlb/weir/discovery/kube/kubetest"
)

// Of the test at scale.
const (
	scaleServices = 1000
	scaleSlices   = 50 // of Services of their own
	perSlice      = 100
	writeEvery    = 100 * time.Millisecond
	writes        = 200
)

// With 1,000 Services and 5,000 endpoints in 50 slices, a slice is written
// every 100 ms, which moves all of its endpoints. Probe packets tell when
// Weir's decision has changed; figures are printed, and what is tested is
// that every change arrives.
func TestKubeWireScaleAndLatency(t *testing.T) {
	f := newFixture(t, kubetest.Options{NoEndpoints: true, Fast: true})
	f.extra("logging: {level: debug, format: text}\n")
	p := newProbes(f, netip.MustParsePrefix("10.50.0.0/16"))
	took, ports := f.populate()
	t.Logf("%d Services and %d endpoints in %d slices made in %.1f s", scaleServices, scaleSlices*perSlice, scaleSlices, took.Seconds())
	f.start()
	s, err := f.admin.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if s.Services < scaleServices || s.Endpoints != scaleSlices*perSlice {
		t.Fatalf("Weir serves %d Services and %d endpoints", s.Services, s.Endpoints)
	}
	time.Sleep(time.Second) // what the start costs is not part of the figures
	before := f.usage()
	changes := f.churn(p, ports)
	after := f.usage()
	f.match(changes)

	var event, write []time.Duration
	for _, c := range changes {
		if c.decided.IsZero() || c.event.IsZero() {
			t.Errorf("change %s of slice %d: event %v, decision %v", c.version, c.slice, c.event, c.decided)
			continue
		}
		event = append(event, c.decided.Sub(c.event))
		write = append(write, c.decided.Sub(c.written))
	}
	t.Logf("watch event to packet decision:   %s", quantiles(event))
	t.Logf("write's return to packet decision: %s", quantiles(write))
	span := after.at.Sub(before.at)
	t.Logf("weir: %.1f %% of a CPU (its worker and %.1f %% beside), %d MB resident", 100*(after.cpu-before.cpu).Seconds()/span.Seconds(),
		100*(after.others-before.others).Seconds()/span.Seconds(), after.rss>>20)
	for _, line := range strings.Split(f.metrics(), "\n") {
		if strings.HasPrefix(line, "weir_discovery_publish_duration_seconds_") && !strings.Contains(line, "bucket") {
			t.Log(line)
		}
	}
}

// extra adds lines to the configuration.
func (f *fixture) extra(text string) {
	f.t.Helper()
	file, err := os.OpenFile(f.path("config.yaml"), os.O_APPEND|os.O_WRONLY, 0)
	if err == nil {
		_, err = file.WriteString(text)
		err = errors.Join(err, file.Close())
	}
	if err != nil {
		f.t.Fatal(err)
	}
}

// populate makes the Services, and the slices of the first of them. It returns
// those Services' node ports.
func (f *fixture) populate() (time.Duration, []uint16) {
	start := time.Now()
	ports := make([]uint16, scaleSlices)
	var wait sync.WaitGroup
	errs := make([]error, 8)
	for w := range errs {
		wait.Go(func() {
			for i := w; i < scaleServices && errs[w] == nil; i += len(errs) {
				var port uint16
				if port, errs[w] = f.populateOne(i); i < scaleSlices {
					ports[i] = port
				}
			}
		})
	}
	wait.Wait()
	if err := errors.Join(errs...); err != nil {
		f.t.Fatal(err)
	}
	return time.Since(start), ports
}

func (f *fixture) populateOne(i int) (uint16, error) {
	svc, err := f.Site.Client.CoreV1().Services(f.Site.Namespace).Create(f.t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: serviceName(i)},
		Spec: corev1.ServiceSpec{
			Type:  corev1.ServiceTypeNodePort,
			Ports: []corev1.ServicePort{{Name: "probe", Protocol: corev1.ProtocolUDP, Port: 53}},
		},
	}, metav1.CreateOptions{})
	if err != nil || i >= scaleSlices {
		return 0, err
	}
	_, err = f.Site.Client.DiscoveryV1().EndpointSlices(f.Site.Namespace).Create(f.t.Context(), sliceOf(i, false), metav1.CreateOptions{})
	return uint16(svc.Spec.Ports[0].NodePort), err
}

func serviceName(i int) string { return fmt.Sprintf("svc-%d", i) }

// sliceOf is slice i with one of its two sets of endpoints.
func sliceOf(i int, other bool) *discoveryv1.EndpointSlice {
	name, port, proto, node := "probe", int32(probePort), corev1.ProtocolUDP, "node-a"
	s := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: serviceName(i), Labels: map[string]string{discoveryv1.LabelServiceName: serviceName(i)}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: &name, Port: &port, Protocol: &proto}},
	}
	for e := range perSlice {
		a := netip.AddrFrom4([4]byte{10, 50, set(i, other), byte(1 + e)})
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{a.String()}, NodeName: &node})
	}
	return s
}

func set(i int, other bool) byte {
	if other {
		return byte(128 + i)
	}
	return byte(i)
}

// change is one write of a slice and what came of it.
type change struct {
	slice   int
	version string // resourceVersion
	written time.Time
	event   time.Time // Weir's own watch event
	decided time.Time // first probe at a new endpoint
}

// churn writes slices in turn while probes go to the Service concerned.
func (f *fixture) churn(p *probes, ports []uint16) []change {
	slicesOf := f.Site.Client.DiscoveryV1().EndpointSlices(f.Site.Namespace)
	var changes []change
	other := make([]bool, len(ports))
	for n := range writes {
		begin := time.Now()
		i := n % len(ports)
		other[i] = !other[i]
		c := change{slice: i}
		done := make(chan error, 1)
		go func() {
			time.Sleep(5 * time.Millisecond) // some probes come first
			s, err := slicesOf.Update(f.t.Context(), sliceOf(i, other[i]), metav1.UpdateOptions{})
			c.written = time.Now()
			if err == nil {
				c.version = s.ResourceVersion
			}
			done <- err
		}()
		p.take()
		// A change is followed for as long as it takes.
		for c.decided.IsZero() && time.Since(begin) < kubetest.Within || time.Since(begin) < writeEvery {
			p.send(ports[i])
			time.Sleep(probeInterval)
			for _, a := range p.take() {
				if c.decided.IsZero() && a.frontend == ports[i] && a.endpoint.As4()[2] == set(i, other[i]) {
					c.decided = a.at
				}
			}
		}
		if err := <-done; err != nil {
			f.t.Fatal(err)
		}
		changes = append(changes, c)
	}
	return changes
}

// match finds the watch events of the changes in Weir's log.
func (f *fixture) match(changes []change) {
	file, err := os.Open(f.weir.LogFile())
	if err != nil {
		f.t.Fatal(err)
	}
	defer file.Close()
	at := map[string]time.Time{}
	for s := bufio.NewScanner(file); s.Scan(); {
		if !strings.Contains(s.Text(), `msg="watch event"`) {
			continue
		}
		version, nano := "", int64(0)
		for _, field := range strings.Fields(s.Text()) {
			switch k, v, _ := strings.Cut(field, "="); k {
			case "resourceVersion":
				version = v
			case "unixNano":
				nano, _ = strconv.ParseInt(v, 10, 64)
			}
		}
		at[version] = time.Unix(0, nano)
	}
	for i := range changes {
		changes[i].event = at[changes[i].version]
	}
}

// usage is what the weir process has used so far.
type usage struct {
	at          time.Time
	cpu, others time.Duration // all threads; those that are not workers
	rss         int64
}

func (f *fixture) usage() usage {
	f.t.Helper()
	const tick = 10 * time.Millisecond // USER_HZ
	pid := f.weir.Cmd.Process.Pid
	u := usage{at: time.Now()}
	threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		f.t.Fatal(err)
	}
	var all []time.Duration
	for _, th := range threads {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/stat", pid, th.Name()))
		if err != nil {
			continue // ended
		}
		fields := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+2:]))
		user, _ := strconv.Atoi(fields[11])
		system, _ := strconv.Atoi(fields[12])
		all = append(all, time.Duration(user+system)*tick)
		u.cpu += all[len(all)-1]
	}
	// The worker spins more than anything else computes.
	u.others = u.cpu - slices.Max(all)
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		f.t.Fatal(err)
	}
	pages, _ := strconv.ParseInt(strings.Fields(string(b))[1], 10, 64)
	u.rss = pages * int64(os.Getpagesize())
	return u
}

func quantiles(d []time.Duration) string {
	if len(d) == 0 {
		return "none"
	}
	slices.Sort(d)
	at := func(q float64) time.Duration {
		return d[min(len(d)-1, int(q*float64(len(d))))].Round(10 * time.Microsecond)
	}
	return fmt.Sprintf("p50 %v, p90 %v, p99 %v, max %v of %d", at(0.5), at(0.9), at(0.99), d[len(d)-1].Round(10*time.Microsecond), len(d))
}
