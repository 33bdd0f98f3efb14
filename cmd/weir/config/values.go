package config

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

const auto = "auto"

// maxCPU bounds CPU numbers: more than any kernel has (CONFIG_NR_CPUS).
const maxCPU = 8191

// unmarshal has parse read the text of a JSON value. A list is its elements, separated by commas, and an
// error that says what is expected, if noList does.
func unmarshal(data []byte, parse func(string) error, noList string) error {
	var v any
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	if err := d.Decode(&v); err != nil {
		return err
	}
	var err error
	switch v := v.(type) {
	case nil:
		return nil
	case []any:
		var parts []string
		for _, e := range v {
			parts = append(parts, fmt.Sprint(e))
		}
		switch {
		case noList != "":
			err = errors.New(noList + ", got a list")
		case len(v) == 0:
			err = errors.New("expected auto or CPU numbers, got an empty list")
		default:
			err = parse(strings.Join(parts, ","))
		}
	case map[string]any:
		err = errors.New("expected a value, got a mapping")
	default:
		err = parse(fmt.Sprint(v))
	}
	if err != nil {
		return &json.UnmarshalTypeError{Value: err.Error()} // the decoder adds the field
	}
	return nil
}

// AutoInt is a positive number, or 0 for "auto".
type AutoInt int

// IsAuto is true when Weir is to choose.
func (a AutoInt) IsAuto() bool { return a == 0 }

// String is "auto" or the number.
func (a AutoInt) String() string {
	if a == 0 {
		return auto
	}
	return strconv.Itoa(int(a))
}

// MarshalJSON is "auto" or the number.
func (a AutoInt) MarshalJSON() ([]byte, error) {
	if a == 0 {
		return json.Marshal(auto)
	}
	return json.Marshal(int(a))
}

// UnmarshalJSON parses a string or a number.
func (a *AutoInt) UnmarshalJSON(data []byte) error {
	return unmarshal(data, a.Set, "expected auto or a number")
}

// Set parses "auto" or a positive number.
func (a *AutoInt) Set(text string) error {
	if text == auto {
		*a = 0
		return nil
	}
	n, err := strconv.ParseInt(text, 10, 32)
	if err != nil || n < 1 {
		return fmt.Errorf("expected auto or a positive number, got %q", text)
	}
	*a = AutoInt(n)
	return nil
}

// PortRange is an inclusive range of ports. The zero value is auto.
type PortRange struct{ Lo, Hi uint16 }

// String is "LO-HI", or auto.
func (r PortRange) String() string {
	if r == (PortRange{}) {
		return auto
	}
	return fmt.Sprintf("%d-%d", r.Lo, r.Hi)
}

// Size is the number of ports in the range.
func (r PortRange) Size() int { return int(r.Hi) - int(r.Lo) + 1 }

// Contains tells whether port lies in the range.
func (r PortRange) Contains(port uint16) bool { return r.Lo <= port && port <= r.Hi }

// Overlaps tells whether the ranges share a port.
func (r PortRange) Overlaps(o PortRange) bool { return r.Lo <= o.Hi && o.Lo <= r.Hi }

// MarshalJSON is "LO-HI", or auto.
func (r PortRange) MarshalJSON() ([]byte, error) { return json.Marshal(r.String()) }

// UnmarshalJSON parses a string or a number.
func (r *PortRange) UnmarshalJSON(data []byte) error {
	return unmarshal(data, r.Set, "expected auto, or a range of ports such as 61000-65535")
}

// Set parses "LO-HI", a single port or auto.
func (r *PortRange) Set(text string) error {
	if text == auto {
		*r = PortRange{}
		return nil
	}
	lo, hi, isRange := strings.Cut(text, "-")
	if !isRange {
		hi = lo
	}
	l, errLo := parsePort(strings.TrimSpace(lo))
	h, errHi := parsePort(strings.TrimSpace(hi))
	if errLo != nil || errHi != nil {
		return fmt.Errorf("expected auto, or a range of ports such as 61000-65535, got %q", text)
	}
	if l > h {
		return fmt.Errorf("the range %s ends before it begins", text)
	}
	*r = PortRange{l, h}
	return nil
}

// Mark is bits of a packet mark; 0 is none.
type Mark uint32

// String is the number in hexadecimal.
func (m Mark) String() string { return fmt.Sprintf("%#x", uint32(m)) }

// MarshalJSON is the number in hexadecimal, as a string.
func (m Mark) MarshalJSON() ([]byte, error) { return json.Marshal(m.String()) }

// UnmarshalJSON parses a string or a number.
func (m *Mark) UnmarshalJSON(data []byte) error {
	return unmarshal(data, m.Set, "expected bits of a packet mark such as 0x10")
}

// Set parses a number, with 0x in front for hexadecimal.
func (m *Mark) Set(text string) error {
	n, err := strconv.ParseUint(text, 0, 32)
	if err != nil {
		return fmt.Errorf("expected bits of a packet mark such as 0x10, got %q", text)
	}
	*m = Mark(n)
	return nil
}

// CPUs is a list of CPU numbers in the order of use; nil is "auto".
type CPUs []int

// IsAuto is true when Weir is to choose.
func (c CPUs) IsAuto() bool { return len(c) == 0 }

// String is "auto" or a list such as "2-5,8".
func (c CPUs) String() string {
	if c.IsAuto() {
		return auto
	}
	var b strings.Builder
	for i := 0; i < len(c); {
		j := i
		for j+1 < len(c) && c[j+1] == c[j]+1 {
			j++
		}
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Itoa(c[i]))
		if j > i {
			b.WriteByte('-')
			b.WriteString(strconv.Itoa(c[j]))
		}
		i = j + 1
	}
	return b.String()
}

// MarshalJSON encodes the result of String.
func (c CPUs) MarshalJSON() ([]byte, error) { return json.Marshal(c.String()) }

// UnmarshalJSON parses a string, a number or a list of them.
func (c *CPUs) UnmarshalJSON(data []byte) error { return unmarshal(data, c.Set, "") }

// Set parses "auto" or a list such as "2-5,8", as taskset(1) and cpuset(7)
// have it.
func (c *CPUs) Set(text string) error {
	if text == auto {
		*c = nil
		return nil
	}
	var out CPUs
	for part := range strings.SplitSeq(text, ",") {
		lo, hi, isRange := strings.Cut(strings.TrimSpace(part), "-")
		if !isRange {
			hi = lo
		}
		l, errLo := strconv.ParseUint(lo, 10, 16)
		h, errHi := strconv.ParseUint(hi, 10, 16)
		if err := cmp.Or(errLo, errHi); err != nil || l > h || h > maxCPU {
			return fmt.Errorf("expected auto or CPU numbers such as 2-5,8, got %q", text)
		}
		for n := l; n <= h; n++ {
			if slices.Contains(out, int(n)) {
				return fmt.Errorf("CPU %d is listed twice", n)
			}
			out = append(out, int(n))
		}
	}
	*c = out
	return nil
}

func parsePort(s string) (uint16, error) {
	n, err := strconv.ParseUint(s, 10, 16)
	if err != nil || n == 0 {
		return 0, fmt.Errorf("expected a port (1-65535), got %q", s)
	}
	return uint16(n), nil
}
