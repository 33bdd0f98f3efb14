package translate

import (
	"fmt"
	"strings"

	"github.com/weirlb/weir/cmd/weir/problem"
	"github.com/weirlb/weir/discovery"
	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/table"
)

// Discovered returns the problems that discovery found in a Service.
func Discovered(svc *discovery.Service) []problem.Problem {
	var out []problem.Problem
	for _, text := range svc.Errors {
		field, reason := splitField(text)
		out = append(out, problem.New(problem.InvalidObject, field, "%s", reason))
	}
	if svc.Unsupported != "" {
		out = append(out, problem.New(problem.UnsupportedField, svc.Unsupported, "not supported by Weir: the Service is left to the kernel"))
	}
	if svc.Refused != "" {
		out = append(out, problem.New(problem.OverLimit, "", "%s: the Service is left to the kernel", svc.Refused))
	}
	for _, f := range svc.Faults {
		out = append(out, problem.New(faultKinds[f.Kind], f.Field, "%s", f.Reason))
	}
	for _, text := range svc.Warnings {
		out = append(out, problem.New(problem.ServiceWarning, "", "%s", text))
	}
	return out
}

var faultKinds = map[discovery.FaultKind]problem.Kind{
	discovery.FaultPortName:   problem.PortNameMismatch,
	discovery.FaultNoSlices:   problem.NoSlices,
	discovery.FaultNoNodePort: problem.NoNodePort,
	discovery.FaultNoHints:    problem.NoHints,
}

// splitField takes "spec.ports[0].port: Invalid value..." apart. A text that
// does not begin with a field is a reason as a whole.
func splitField(text string) (field, reason string) {
	field, reason, ok := strings.Cut(text, ": ")
	if !ok || !strings.HasPrefix(field, "spec.") && !strings.HasPrefix(field, "metadata.") && !strings.HasPrefix(field, "status.") {
		return "", text
	}
	return field, reason
}

// Conflict returns the problems of a Service that claims a frontend which another
// holds, and of the holder.
func Conflict(c *table.ConflictError) []problem.Problem {
	frontend := fmt.Sprintf("%s %s", header.ProtocolName(c.Proto), table.AddressText(c.AddrPort, c.LastPort))
	if c.Part != "" {
		return []problem.Problem{
			{Kind: problem.FrontendConflict, Object: "Service " + c.Service, Reason: fmt.Sprintf("%s has ports in common with %s of Service %s, which gets them", frontend, c.Part, c.Holder)},
			{Kind: problem.FrontendContested, Object: "Service " + c.Holder, Reason: fmt.Sprintf("%s has ports in common with %s of Service %s, which does not get them", c.Part, frontend, c.Service)},
		}
	}
	return []problem.Problem{
		{Kind: problem.FrontendConflict, Object: "Service " + c.Service, Reason: fmt.Sprintf("%s is held by Service %s", frontend, c.Holder)},
		{Kind: problem.FrontendContested, Object: "Service " + c.Holder, Reason: fmt.Sprintf("%s is claimed by Service %s, too, which does not get it", frontend, c.Service)},
	}
}
