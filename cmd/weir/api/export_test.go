package api

// For tests outside of the package.

// Operation is a route.
type Operation struct {
	Method, Path, Summary, Produces string
	Params                          []Parameter
	Full                            bool
	Answer                          any
}

// Parameter is a param.
type Parameter struct {
	Name, Usage, Kind string
	Enum              []string
	Required          bool
}

// Operations are the routes.
func Operations() []Operation {
	var out []Operation
	for _, r := range routes(&fakeSource{}, usual) {
		o := Operation{Method: r.method, Path: r.path, Summary: r.summary, Produces: r.produces, Answer: r.answer, Full: r.full}
		for _, p := range r.params {
			o.Params = append(o.Params, Parameter{p.name, p.usage, p.kind, p.enum, p.required})
		}
		out = append(out, o)
	}
	return out
}

// SourceOfExamples gives an example of every answer.
func SourceOfExamples() Source { return &fakeSource{status: exampleStatus()} }

// QueriesOfExamples are the parameters of requests that need some, by path.
func QueriesOfExamples() map[string]string {
	return map[string]string{
		"/v1/connections/count": "?by=service",
		"/v1/connections/kill":  "?client=192.0.2.1",
		"/v1/drains/endpoints":  "?endpoints=10.1.2.3:8080",
		"/v1/explain/address":   "?address=203.0.113.10",
		"/v1/log-level":         "?level=debug",
		"/v1/profile":           "?kind=heap",
		"/v1/trace":             "?protocol=TCP&source=192.0.2.7:40000&destination=203.0.113.1:80",
	}
}
