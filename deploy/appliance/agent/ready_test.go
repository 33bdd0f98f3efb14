package main

import "testing"

// /readyz is asked where Weir's configuration has it.
func TestReadinessIsAskedAtHealthzBindAddress(t *testing.T) {
	for _, test := range []struct{ config, want string }{
		{"nodeName: edge-1\n", "127.0.0.1:9465"},
		{"healthzBindAddress: 0.0.0.0:8080\n", "127.0.0.1:8080"},
		{"healthzBindAddress: ':8080'\n", "localhost:8080"},
		{"healthzBindAddress: '[::]:8080'\n", "localhost:8080"},
		{"healthzBindAddress: 10.77.0.1:9465\n", "10.77.0.1:9465"},
		{"healthzBindAddress: ''\n", ""},
		{"interfaces: [\n", ""},
	} {
		got, err := addressOf([]byte(test.config))
		if got != test.want || (err == nil) != (test.want != "") {
			t.Errorf("%q: %q, %v, want %q", test.config, got, err, test.want)
		}
	}
}
