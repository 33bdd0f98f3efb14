package deploy

import (
	"net/http"
	"slices"
	"strings"
	"sync"
)

// record notes the verbs of requests that the API server allowed, also of objects that are not there.
type record struct {
	mu   sync.Mutex
	seen map[string][]string
}

func (r *record) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(q *http.Request) (*http.Response, error) {
		res, err := next.RoundTrip(q)
		if err == nil && (res.StatusCode < 300 || res.StatusCode == http.StatusNotFound) {
			r.note(q)
		}
		return res, err
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// note takes /api/v1/[namespaces/NS/]RESOURCE[/NAME] apart, or the same below
// /apis/GROUP.
func (r *record) note(q *http.Request) {
	parts := strings.Split(strings.Trim(q.URL.Path, "/"), "/")
	group := ""
	if parts[0] == "apis" {
		group, parts = parts[1]+"/", parts[1:]
	}
	parts = parts[2:]
	if parts[0] == "namespaces" && len(parts) > 2 {
		parts = parts[2:]
	}
	verb := map[string]string{http.MethodGet: "list", http.MethodPost: "create", http.MethodPatch: "patch"}[q.Method]
	switch {
	case q.URL.Query().Get("watch") != "":
		verb = "watch"
	case q.Method == http.MethodGet && len(parts) > 1:
		verb = "get"
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	name := group + parts[0]
	if !slices.Contains(r.seen[name], verb) {
		r.seen[name] = append(r.seen[name], verb)
		slices.Sort(r.seen[name])
	}
}

// missing are the verbs of want that have not been seen.
func (r *record) missing(want map[string][]string) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []string
	for name, all := range want {
		for _, v := range all {
			if !slices.Contains(r.seen[name], v) {
				out = append(out, v+" "+name)
			}
		}
	}
	slices.Sort(out)
	return out
}
