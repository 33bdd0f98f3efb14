package vm

import (
	"regexp"
	"strconv"
	"strings"
)

// lack is a reason for which a test may be skipped. Any other reason fails the case: it is as
// likely that a module or a program is missing from the initramfs.
type lack struct {
	reason *regexp.Regexp
	since  string // the first series of kernels that has the feature; "": a matter of the NIC
	// feature is the name that `weir check` has for it; without it, otherwise is the reason
	// why it has none.
	feature, otherwise string
}

// lacks are the features that a supported kernel, or the driver of an emulated NIC, may lack.
var lacks = []lack{
	{regexp.MustCompile(`^the kernel cannot load programs that read the flow table`), "5.12", "BPF programs that share memory with a process", ""},
	{regexp.MustCompile(`^this kernel does not keep neighbors fresh by itself`), "5.16", "", "Weir probes neighbors itself"},
	{regexp.MustCompile(`^the kernel has no XDP programs for packets of several buffers`), "5.18", "XDP programs for packets of several buffers", ""},
	{regexp.MustCompile(`^the kernel's netdev netlink family does not answer`), "6.3", "driver features over netlink", ""},
	{regexp.MustCompile(`^AF_XDP rings of bound sockets: no `), "6.4", "AF_XDP rings of bound sockets", ""},
	{regexp.MustCompile(`^AF_XDP multi-buffer: no `), "6.6", "AF_XDP multi-buffer", ""},
	{regexp.MustCompile(`^TCX programs: no `), "6.6", "TCX programs", ""},
	{regexp.MustCompile(`^AF_XDP transmit metadata: no `), "6.8", "AF_XDP transmit metadata", ""},
	{regexp.MustCompile(`^the driver does not change the number of queues: `), "", "", "Weir takes the queues that there are"},
}

// explain adds to the reason of a skipped test what `weir check` says of the feature, among
// the lines that it has for what the kernel lacks.
func explain(reason string, check []string) string {
	reason = strings.TrimSpace(reason)
	for _, l := range lacks {
		if !l.reason.MatchString(reason) {
			continue
		}
		if l.feature == "" {
			return reason + "; " + l.otherwise
		}
		for _, line := range check {
			if strings.HasPrefix(line, l.feature+": ") {
				return reason + "; `weir check`: " + line
			}
		}
	}
	return reason
}

// unexplained returns the first reason of a skipped test that neither a kernel of this version
// nor one of the NICs may have; "" for none.
func (t *Tests) unexplained(version, nics string) string {
	for _, reason := range t.Reasons {
		if !isExplained(strings.TrimSpace(reason), version, nics) {
			return reason
		}
	}
	return ""
}

func isExplained(reason, version, nics string) bool {
	for _, l := range lacks {
		if !l.reason.MatchString(reason) {
			continue
		}
		if l.since == "" {
			return nics != ""
		}
		return isBefore(version, l.since)
	}
	return false
}

// isBefore compares the first two numbers of a kernel's version with a series.
func isBefore(version, series string) bool {
	x, y := seriesOf(version), seriesOf(series)
	return x[0] < y[0] || x[0] == y[0] && x[1] < y[1]
}

func seriesOf(version string) (s [2]int) {
	for i, part := range strings.SplitN(version, ".", 3) {
		if i == len(s) {
			break
		}
		digits, _, _ := strings.Cut(part, "-")
		s[i], _ = strconv.Atoi(digits)
	}
	return s
}
