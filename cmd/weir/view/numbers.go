package view

import (
	"fmt"
	"time"
)

// Short is a number in at most five characters.
func Short(v float64) string {
	for _, unit := range []string{"", "k", "M", "G", "T", "P"} {
		if v < 9999.5 {
			if unit == "" || v >= 99.95 {
				return fmt.Sprintf("%.0f%s", v, unit)
			}
			return fmt.Sprintf("%.1f%s", v, unit)
		}
		v /= 1000
	}
	return fmt.Sprintf("%.0fE", v)
}

// Age is a time in the two largest units.
func Age(d time.Duration) string {
	switch d = max(d, 0); {
	case d >= 24*time.Hour:
		return fmt.Sprintf("%dd%dh", d/(24*time.Hour), d%(24*time.Hour)/time.Hour)
	case d >= time.Hour:
		return fmt.Sprintf("%dh%dm", d/time.Hour, d%time.Hour/time.Minute)
	case d >= time.Minute:
		return fmt.Sprintf("%dm%ds", d/time.Minute, d%time.Minute/time.Second)
	}
	return fmt.Sprintf("%ds", d/time.Second)
}
