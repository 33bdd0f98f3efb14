package cluster

import (
	"io"
	"net/http"
)

// metrics is what /metrics says.
func (f *fixture) metrics() string {
	f.t.Helper()
	c := &http.Client{Transport: &http.Transport{DialContext: f.Edge.Edge.DialContext, DisableKeepAlives: true}}
	res, err := c.Get("http://127.0.0.1:9464/metrics")
	if err != nil {
		f.t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		f.t.Fatal(err)
	}
	return string(b)
}
