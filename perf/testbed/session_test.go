package testbed

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"testing"
)

const asLeader = "WEIR_TEST_LEAD_SESSION"

func TestMain(m *testing.M) {
	if os.Getenv(asLeader) != "" {
		interrupted := make(chan os.Signal, 1)
		signal.Notify(interrupted, syscall.SIGINT)
		LeadSession()
		fmt.Println("leads", leads())
		<-interrupted
		os.Exit(3)
	}
	os.Exit(m.Run())
}

// The program runs in a session of its own, gets the signals of its caller's, and gives its status.
func TestLeadSession(t *testing.T) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), asLeader+"=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if strings.TrimSpace(line) != "leads true" {
		t.Errorf("%q, %v", line, err)
	}
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil || cmd.ProcessState.ExitCode() != 3 {
		t.Errorf("it ended with %v", err)
	}
}
