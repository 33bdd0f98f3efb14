package cpu

import "time"

// Meter measures the use of a CPU over a span of time.
type Meter struct {
	core  int
	own   []int // processes of the measured system
	began time.Time
	stat  Core
	own0  Threads
}

// Use is the activity of a CPU over a span of time.
type Use struct {
	Wall  time.Duration
	Core  Core          // all of it, in ticks of 10 ms
	Own   time.Duration // the measured system's threads and the kernel's of this CPU
	Other time.Duration // time of other programs there
}

// Busy is the CPU time of the measured system: all work of the CPU but the known work of
// other programs.
func (u Use) Busy() time.Duration { return u.Core.Busy() - u.Other }

// tolerance is by how much the two accounts differ without anything else
// having run: ticks are a sample.
const tolerance = 0.02

// Start begins to measure a CPU on which processes own belong to the measured
// system.
func Start(core int, own ...int) (*Meter, error) {
	m, err := Prepare(core, own...)
	if err != nil {
		return nil, err
	}
	return m, m.Begin()
}

// Prepare finds the threads to measure, which takes a while on a busy CPU. Begin follows.
func Prepare(core int, own ...int) (*Meter, error) {
	kernel, err := KernelThreads(core)
	if err != nil {
		return nil, err
	}
	return &Meter{core: core, own: append(kernel, own...)}, nil
}

// Begin begins to measure.
func (m *Meter) Begin() (err error) {
	if m.own0, err = ReadThreads(m.own...); err != nil {
		return err
	}
	m.began = time.Now()
	m.stat, err = ReadCore(m.core)
	return err
}

// Stop ends measuring.
func (m *Meter) Stop() (Use, error) {
	now, err := ReadCore(m.core)
	if err != nil {
		return Use{}, err
	}
	u := Use{Wall: time.Since(m.began), Core: now.Sub(m.stat)}
	own, err := ReadThreads(m.own...)
	if err != nil {
		return Use{}, err
	}
	u.Own = own.Since(m.own0)
	if excess := u.Core.Busy() - u.Own; float64(excess) > tolerance*float64(u.Wall) {
		u.Other = excess
	}
	return u, nil
}
