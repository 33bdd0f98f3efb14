package config

import "time"

// Hold is HoldSeconds as a duration.
func (d Death) Hold() time.Duration { return time.Duration(d.HoldSeconds) * time.Second }

// NotReady is NotReadySeconds as a duration.
func (d Drain) NotReady() time.Duration { return time.Duration(d.NotReadySeconds) * time.Second }

// Timeout is TimeoutSeconds as a duration.
func (d Drain) Timeout() time.Duration { return time.Duration(d.TimeoutSeconds) * time.Second }

// LastKnownMaxAge is LastKnownMaxAgeHours or the default, 0 for no limit.
func (k *Kubernetes) LastKnownMaxAge() time.Duration {
	if k.LastKnownMaxAgeHours == nil {
		return DefaultLastKnownMaxAgeHours * time.Hour
	}
	return time.Duration(*k.LastKnownMaxAgeHours) * time.Hour
}
