package lb

import "errors"

// Leave ends the workers and leaves everything in place for the next process: program,
// flow table, host veth, offloads. It is Close for a restart, and follows Run. From here on
// the program holds packets for cfg.Hold; the sockets end with the process.
func (l *LB) Leave() error {
	errs := []error{l.steer.Hold(l.cfg.Hold)}
	for _, w := range l.workers {
		w.Stop()
	}
	l.running.Wait()
	return errors.Join(append(errs, l.flows.Close(), l.steer.Close(false))...)
}
