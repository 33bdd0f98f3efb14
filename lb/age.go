package lb

// ageSteps is how long a worker without packets ages flows until it does a round
// again, its sign of life: some milliseconds, were all that it looks at to be
// deleted.
const ageSteps = 1 << 11

// age does what is due of ageing, while no packet comes. It reports whether the
// worker has something else to do before it may sleep.
func (w *worker) age() bool {
	for range ageSteps {
		if !w.ct.Age(w.tick) {
			return false
		}
		w.ct.Quiesce()
		if w.pending() {
			return true
		}
	}
	return true
}
