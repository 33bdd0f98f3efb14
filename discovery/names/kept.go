package names

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/weirlb/weir/discovery"
)

// KeptFor is how long an answer counts for the next process: after that its addresses may belong to others.
const KeptFor = 72 * time.Hour

// MaxKept is the number of answers that are kept.
const MaxKept = maxNames

// Kept is an answer that a process leaves to the next: one that starts while no resolver answers has no other.
type Kept struct {
	Namespace string `json:"namespace"`
	Host      string `json:"host"`
	Service   string `json:"service,omitempty"` // as in discovery.NameQuestion
	// At is when the DNS last gave the answer.
	At time.Time `json:"at"`
	// Targets are sorted, each once: at least one.
	Targets []netip.AddrPort `json:"targets"`
}

func (k *Kept) key() key {
	return key{k.Namespace, discovery.NameQuestion{Host: k.Host, Service: k.Service}}
}

// Check returns an error unless a Resolver could have given the answer.
func (k *Kept) Check() error {
	if errs := validation.IsDNS1123Label(k.Namespace); len(errs) > 0 {
		return fmt.Errorf("namespace %.80q: %s", k.Namespace, errs[0])
	}
	if errs := validation.IsDNS1123Subdomain(k.Host); len(errs) > 0 || !strings.Contains(k.Host, ".") {
		return fmt.Errorf("host %.80q is no domain name", k.Host)
	}
	if name, proto, ok := strings.Cut(k.Service, "._"); k.Service != "" && (!ok || !strings.HasPrefix(name, "_") || len(k.Service) > 80 || !slices.Contains([]string{"tcp", "udp", "sctp"}, proto)) {
		return fmt.Errorf("service %.80q is none of the DNS", k.Service)
	}
	if k.At.IsZero() {
		return errors.New("an answer without a time")
	}
	if n := len(k.Targets); n == 0 || n > maxAddresses {
		return fmt.Errorf("%d targets, of at least 1 and at most %d", n, maxAddresses)
	}
	for i, t := range k.Targets {
		if !t.IsValid() || t.Addr().Is4In6() || t.Addr().Zone() != "" || (t.Port() == 0) != (k.Service == "") {
			return fmt.Errorf("%s is no target", t)
		}
		if i > 0 && k.Targets[i-1].Compare(t) >= 0 {
			return errors.New("targets are not sorted")
		}
	}
	return nil
}

// keep remembers the answers of the process before, at most MaxKept, that are not too old.
func (r *Resolver) keep(list []Kept, now time.Time) {
	for i := range list {
		if k := list[i]; now.Sub(k.At) <= KeptFor && len(r.kept) < MaxKept {
			r.kept[k.key()] = k
		}
	}
}

// restore has a name begin with the answer of the process before, if there is one. Preconditions: r.mu is held.
func (r *Resolver) restore(n *name) {
	k, ok := r.kept[n.key]
	if !ok {
		return
	}
	delete(r.kept, n.key)
	n.memory = memory{targets: k.Targets, at: k.At, restored: true}
	n.last, n.at = k.Targets, k.At
}

// Answers returns the last answers, for Config.Kept of the next process: at most MaxKept, the newest.
func (r *Resolver) Answers() []Kept {
	r.mu.Lock()
	var out []Kept
	for k, n := range r.names {
		if len(n.last) > 0 {
			out = append(out, Kept{k.namespace, k.Host, k.Service, n.at, n.last})
		}
	}
	for _, k := range r.kept { // no slice has asked for these yet
		out = append(out, k)
	}
	r.mu.Unlock()
	byKey := func(a, b Kept) int { return compareKeys(a.key(), b.key()) }
	slices.SortFunc(out, func(a, b Kept) int { return cmp.Or(b.At.Compare(a.At), byKey(a, b)) })
	out = out[:min(len(out), MaxKept)]
	slices.SortFunc(out, byKey)
	return out
}
