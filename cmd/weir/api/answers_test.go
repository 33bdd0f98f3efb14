package api_test

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/gorillamux"

	"github.com/weirlb/weir/cmd/weir/api"
)

// strict is the document as it is served, with every field that it does not name forbidden.
func strict(t *testing.T, h http.Handler) (*openapi3.T, routers.Router) {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "http://weir/v1/openapi.json", nil))
	doc, err := openapi3.NewLoader().LoadFromData(w.Body.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	if err := doc.Validate(t.Context()); err != nil {
		t.Fatal(err)
	}
	no := false
	for _, s := range doc.Components.Schemas {
		if len(s.Value.Properties) > 0 {
			s.Value.AdditionalProperties = openapi3.AdditionalProperties{Has: &no}
		}
	}
	r, err := gorillamux.NewRouter(doc)
	if err != nil {
		t.Fatal(err)
	}
	return doc, r
}

// Every answer, and every refusal, is as the document says.
func TestAnswersAreAsDocumented(t *testing.T) {
	h := api.Handler(api.SourceOfExamples())
	doc, router := strict(t, h)
	for path, item := range doc.Paths.Map() {
		for method := range item.Operations() {
			for target, code := range map[string]int{path + queryOf(method, path): 200, path + "?misspelt=1": 400} {
				t.Run(method+" "+target, func(t *testing.T) {
					req := httptest.NewRequest(method, "http://weir"+target, nil)
					w := httptest.NewRecorder()
					h.ServeHTTP(w, req)
					if w.Code != code {
						t.Fatalf("%d: %s", w.Code, w.Body)
					}
					route, vars, err := router.FindRoute(req)
					if err != nil {
						t.Fatal(err)
					}
					in := &openapi3filter.ResponseValidationInput{
						RequestValidationInput: &openapi3filter.RequestValidationInput{Request: req, PathParams: vars, Route: route},
						Status:                 w.Code, Header: w.Header(),
					}
					in.SetBodyBytes(bytes.Clone(w.Body.Bytes()))
					if err := openapi3filter.ValidateResponse(t.Context(), in); err != nil {
						t.Errorf("%v\n%s", err, w.Body)
					}
				})
			}
		}
	}
}

func queryOf(method, path string) string {
	if method == http.MethodGet && path == "/v1/log-level" {
		return ""
	}
	return api.QueriesOfExamples()[path]
}
