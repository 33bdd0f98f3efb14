package worker

// ageSteps is how long a worker without packets ages flows until it does a round
// again, its sign of life: some milliseconds, were all that it looks at to be
// deleted.
const ageSteps = 1 << 11

// age does what is due of ageing, while no packet comes. It reports whether the
// worker has something else to do before it may sleep.
func (w *Worker) age() bool {
	for range ageSteps {
		if !w.conntrack.Age(w.tick) {
			return false
		}
		w.conntrack.Quiesce()
		if w.pending() {
			return true
		}
	}
	return true
}

// Idle ages what is due, as the worker does before it sleeps, for owners that call Round.
func (w *Worker) Idle() {
	w.beginRound()
	for !w.pending() && w.age() {
	}
}

// Quiescent lets go of the flow table, so that the owner may change it between rounds;
// the function that it returns takes it up again.
func (w *Worker) Quiescent() (resume func()) {
	w.conntrack.Offline()
	return w.conntrack.Online
}
