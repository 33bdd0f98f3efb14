// Package job is the agreement between the harness and the first process of a virtual
// machine.
package job

// File is the job in the initramfs, Folder the folder of binaries, and Out the folder of
// results, which the harness shares.
const (
	Folder = "/vm"
	File   = Folder + "/job.json"
	Out    = "/out"
)

// Words of the console's lines, each at the beginning of a line.
const (
	Ready = "vm: ready" // the cases begin
	Alive = "vm: alive" // every ten seconds
	Began = "vm: began" // with the name of the case
	Ended = "vm: ended" // with the name of the case
	Done  = "vm: done"  // no case is left
)

// Job is a list of cases for a virtual machine.
type Job struct {
	Modules string   // folder of the kernel's modules, as this machine sees it
	Load    []string // modules to load before the cases
	Env     []string // environment of every case
	Slow    float64  // how many times slower than a quiet machine the cases run
	Cases   []Case
}

// Case is a command. The name of a case is that of the files with its output and result.
type Case struct {
	Name    string
	Dir     string // working directory
	Command []string
	Env     []string
	Seconds float64 // that suffice on a quiet machine
}

// Result is the end of a case.
type Result struct {
	Name     string   `json:"name"`
	Exit     int      `json:"exit"` // -1: it could not be started, or a signal ended it
	Seconds  float64  `json:"seconds"`
	TimedOut bool     `json:"timedOut"`
	Kernel   []string `json:"kernel"` // lines of the kernel's log that report a defect
}
