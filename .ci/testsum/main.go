// Testsum runs `go test -json`, shows what failed or was skipped and why, and
// adds up how many tests ran, by group.
//
//	testsum run -dir DIR -name NAME -- go test -json ...   run and remember; with :: between
//	                                                       several commands, -jobs of them at a time
//	testsum fuzz -dir DIR -time 3s PKG...   every fuzz target for a while
//	testsum report -dir DIR                                the sum; the verdict
//
// run and fuzz succeed also when tests fail, so that all groups run; report
// gives the verdict: exit status 1 when a test failed, when none ran, or when
// CI=true and something was skipped.
//
// The group of a test is told by its name: TestWire* is wire, Fuzz* is fuzz
// (a target's seed corpus, or the fuzzing itself), Example* is example; where
// rapid drew the inputs it is property, all else is unit. With -name race every test counts as
// race instead; as the same tests have run without the race detector, one that
// is skipped only there (it counts allocations, say) does not count.
package main

import (
	"errors"
	"flag"
	"fmt"
	"iter"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

func main() {
	if len(os.Args) < 2 {
		usage(errors.New("no command was given"))
	}
	fs := flag.NewFlagSet("testsum "+os.Args[1], flag.ExitOnError)
	dir := fs.String("dir", "bin/test", "`directory` of the results")
	name := fs.String("name", "", "`name` of the run")
	jobs := fs.Int("jobs", 1, "`number` of commands at a time")
	each := fs.Duration("time", 3*time.Second, "`time` for each fuzz target")
	_ = fs.Parse(os.Args[2:])

	// A terminal's Ctrl-C reaches the tests by itself: they clean up, and
	// what they say is still shown. Caught and not ignored, since the tests
	// would inherit that.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGINT)

	var err error
	switch os.Args[1] {
	case "run":
		if *name == "" || fs.NArg() == 0 || *jobs < 1 {
			usage(errors.New("run needs -name, a command, and at least one of -jobs"))
		}
		err = runGroup(*dir, *name, *jobs, fs.Args())
	case "fuzz":
		err = fuzzAll(*dir, *each, fs.Args())
	case "report":
		var ok bool
		ok, err = report(os.Stdout, *dir, os.Getenv("CI") == "true")
		if err == nil && !ok {
			os.Exit(1)
		}
	default:
		usage(fmt.Errorf("unknown command %q", os.Args[1]))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "testsum:", err)
		os.Exit(1)
	}
}

func usage(err error) {
	fmt.Fprintln(os.Stderr, "testsum:", err)
	fmt.Fprintln(os.Stderr, "usage: testsum run|fuzz|report [-dir DIR] ...")
	os.Exit(2)
}

// runGroup runs the commands between the arguments that are ::, some at a time, and remembers the
// outcome of all as that of one run.
func runGroup(dir, name string, jobs int, args []string) error {
	began := time.Now()
	all := newResult(name)
	var (
		running sync.WaitGroup
		places  = make(chan struct{}, jobs)
		mu      sync.Mutex
		errs    []error
	)
	for command := range parts(args) {
		places <- struct{}{}
		running.Go(func() {
			defer func() { <-places }()
			r, err := runTests(name, command)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				errs = append(errs, err)
				return
			}
			if len(r.Tests) == 0 { // a name in the Makefile that no test has any more
				r.add(test{Package: "no test has run: " + strings.Join(command, " "), Outcome: failed})
			}
			all.Tests = append(all.Tests, r.Tests...)
		})
	}
	running.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	all.Seconds = time.Since(began).Seconds()
	return all.save(dir)
}

// parts are the commands between the arguments that are ::.
func parts(args []string) iter.Seq[[]string] {
	return func(yield func([]string) bool) {
		for rest := args; rest != nil; {
			n := slices.Index(rest, "::")
			if n < 0 {
				yield(rest)
				return
			}
			if !yield(rest[:n]) {
				return
			}
			rest = rest[n+1:]
		}
	}
}

func runTests(name string, args []string) (*result, error) {
	fmt.Printf("--- %s\n", name)
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	began := time.Now()
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	r := newResult(name)
	parseErr := r.parse(out, os.Stdout)
	err = cmd.Wait()
	r.Seconds = time.Since(began).Seconds()
	if parseErr != nil {
		return nil, parseErr
	}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return nil, err
	}
	if err != nil && !r.anyFailed() {
		// A build that failed before any package could say so.
		r.add(test{Package: name, Outcome: failed})
		fmt.Printf("FAIL %s: %v\n", name, err)
	}
	return r, nil
}
