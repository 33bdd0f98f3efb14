package topology

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// MaxTopologyKeys is the most keys that a Service may have (KEP-536).
const MaxTopologyKeys = 16

// ValidateTopologyKeys returns the errors of a Service's topologyKeys, in
// the wording of the Kubernetes API that had the field (1.17 to 1.21):
// `spec.topologyKeys[1]: Duplicate value: "..."`. externalLocal is true for a
// Service with externalTrafficPolicy: Local. No complaint gives nil.
func ValidateTopologyKeys(keys []string, externalLocal bool) []string {
	if len(keys) == 0 {
		return nil
	}
	const path = "spec.topologyKeys"
	var errs []string
	if externalLocal {
		errs = append(errs, path+": Forbidden: may not be specified when `externalTrafficPolicy=Local`")
	}
	if len(keys) > MaxTopologyKeys {
		errs = append(errs, fmt.Sprintf("%s: Too many: %d: must have at most %d items", path, len(keys), MaxTopologyKeys))
	}
	seen := make(map[string]bool, len(keys))
	for i, k := range keys {
		at := path + "[" + strconv.Itoa(i) + "]"
		if seen[k] {
			errs = append(errs, fmt.Sprintf("%s: Duplicate value: %q", at, k))
		}
		seen[k] = true
		if k == AnyKey {
			if i != len(keys)-1 {
				errs = append(errs, at+`: Invalid value: "*": "*" must be the last value specified`)
			}
			continue
		}
		for _, msg := range qualifiedName(k) {
			errs = append(errs, fmt.Sprintf("%s: Invalid value: %q: %s", at, k, msg))
		}
	}
	return errs
}

var (
	nameForm   = regexp.MustCompile(`^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$`)
	prefixForm = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)
)

// qualifiedName checks a label key: an optional DNS subdomain and a slash,
// then a name of at most 63 characters.
func qualifiedName(s string) []string {
	var errs []string
	name := s
	if prefix, rest, found := strings.Cut(s, "/"); found {
		if strings.Contains(rest, "/") {
			return []string{slashRule}
		}
		name = rest
		switch {
		case prefix == "":
			errs = append(errs, "prefix part must be non-empty")
		case len(prefix) > 253:
			errs = append(errs, "prefix part must be no more than 253 bytes")
		case !prefixForm.MatchString(prefix):
			errs = append(errs, prefixRule)
		}
	}
	switch {
	case name == "":
		errs = append(errs, "name part must be non-empty")
	case len(name) > 63:
		errs = append(errs, "name part must be no more than 63 bytes")
	}
	if !nameForm.MatchString(name) {
		errs = append(errs, nameRule)
	}
	return errs
}

const (
	charRule   = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character"
	nameRule   = "name part " + charRule
	prefixRule = "prefix part a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character"
	slashRule  = "a qualified name " + charRule + ", with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
)
