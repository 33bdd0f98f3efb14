package api_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/weirlb/weir/cmd/weir/api"
)

// FuzzHandler makes requests of any method, path, query and body. Each is answered or
// refused with an error in JSON, and no parameter is left out silently.
func FuzzHandler(f *testing.F) {
	known := map[string][]string{}
	for _, o := range api.Operations() {
		var names []string
		for _, p := range o.Params {
			names = append(names, p.Name)
		}
		known[o.Method+" "+o.Path] = names
		f.Add(o.Method, o.Path, strings.TrimPrefix(api.QueriesOfExamples()[o.Path], "?"), "", "")
		f.Add(o.Method, o.Path, "service=a%2Fb&limit=1&client=10.0.0.0/8", "application/x-www-form-urlencoded", "minAge=1s&state=open")
	}
	f.Add("POST", "/v1/connections/kill", "service=a/b&client=%zz", "", "")
	f.Add("POST", "/v1/connections/kill", "", "multipart/form-data; boundary=x", "--x\r\nContent-Disposition: form-data; name=\"cilent\"\r\n\r\n1\r\n--x--")
	f.Add("GET", "/v1/../v1//status", "", "", "")
	f.Fuzz(func(t *testing.T, method, path, query, contentType, body string) {
		if !strings.HasPrefix(path, "/") || method == "" || strings.ContainsFunc(method, func(r rune) bool { return r < 'A' || r > 'Z' }) {
			return
		}
		req := &http.Request{Method: method, URL: &url.URL{Path: path, RawQuery: query}, Host: "weir",
			Header: http.Header{"Content-Type": {contentType}}, Body: http.NoBody}
		if body != "" {
			req = httptest.NewRequest(http.MethodPost, "http://weir/", strings.NewReader(body)).WithContext(t.Context())
			req.Method, req.URL, req.Header = method, &url.URL{Path: path, RawQuery: query}, http.Header{"Content-Type": {contentType}}
		}
		w := httptest.NewRecorder()
		api.Handler(api.SourceOfExamples()).ServeHTTP(w, req.WithContext(t.Context()))
		switch {
		case w.Code == http.StatusOK:
		case w.Code >= 300 && w.Code < 400: // of the path, by the mux
			return
		default:
			var e api.Failure
			if err := json.Unmarshal(w.Body.Bytes(), &e); err != nil || e.Error == "" {
				t.Fatalf("%s %s?%s: %d without an error: %q", method, path, query, w.Code, w.Body)
			}
			return
		}
		names, ok := known[method+" "+path]
		if !ok && method != http.MethodHead {
			t.Fatalf("%s %s is answered and not documented", method, path)
		}
		values, err := url.ParseQuery(query)
		if err != nil {
			t.Fatalf("%s?%s is answered: %v", path, query, err)
		}
		for name := range values {
			if ok && !slices.Contains(names, name) {
				t.Fatalf("%s?%s is answered: %q is unknown", path, query, name)
			}
		}
	})
}
