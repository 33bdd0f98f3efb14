package api

import "encoding/json"

// Explanation is the answer to /v1/explain. Package explain has the form of a Service,
// which is that of `weir explain -o json`.
type Explanation struct {
	Node     string            `json:"node"`
	WhatIf   string            `json:"whatIf,omitempty"`
	Services []json.RawMessage `json:"services"`
	Errors   []string          `json:"errors,omitempty"`
	Notes    []string          `json:"notes,omitempty"`
}
