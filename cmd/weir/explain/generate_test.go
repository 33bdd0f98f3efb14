package explain

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/rogpeppe/go-internal/testscript"
)

// generate writes a file that is too large for a script.
func generate(ts *testscript.TestScript, neg bool, args []string) {
	const usage = "usage: generate garbage|bomb|endpoints N FILE"
	if neg || len(args) != 3 {
		ts.Fatalf(usage)
	}
	n, err := strconv.Atoi(args[1])
	ts.Check(err)
	var content []byte
	switch args[0] {
	case "garbage":
		content = make([]byte, n)
		rand.NewChaCha8([32]byte{7}).Read(content)
	case "bomb":
		content = bomb(n)
	case "endpoints":
		content = manyEndpoints(n)
	default:
		ts.Fatalf(usage)
	}
	ts.Check(os.WriteFile(ts.MkAbs(args[2]), content, 0o644))
}

// bomb is small and would be 9^levels values if its aliases were followed.
func bomb(levels int) []byte {
	var b strings.Builder
	b.WriteString("apiVersion: v1\nkind: Service\nmetadata: {name: bomb}\nl0: &l0 x\n")
	for i := 1; i <= levels; i++ {
		fmt.Fprintf(&b, "l%d: &l%d [%s]\n", i, i, strings.Join(slices.Repeat([]string{fmt.Sprintf("*l%d", i-1)}, 9), ", "))
	}
	return []byte(b.String())
}

func manyEndpoints(n int) []byte {
	var ready, unready strings.Builder
	for i := range n {
		to := &ready
		if i < 100 {
			to = &unready
		}
		fmt.Fprintf(to, "  - ip: 10.2.%d.%d\n", i/250, i%250+1)
	}
	return []byte("apiVersion: v1\nkind: Endpoints\nmetadata: {name: web}\nsubsets:\n- ports: [{name: http, port: 8080}]\n" +
		"  notReadyAddresses:\n" + unready.String() + "  addresses:\n" + ready.String())
}
