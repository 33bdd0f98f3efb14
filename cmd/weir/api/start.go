package api

// Phase is a part of the start, and its duration. The phases follow each other, from the start
// of the process to the moment at which it takes traffic.
type Phase struct {
	Name    string  `json:"name"`
	Seconds float64 `json:"seconds"`
}
