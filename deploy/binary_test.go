package deploy

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// built is the directory of the binary, to be removed in the end.
var built string

func removeBinary() {
	if built != "" {
		os.RemoveAll(built)
	}
}

// binary is Weir, built as the image has it: with the flags of the Dockerfile.
var binary = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "weir-deploy-")
	if err != nil {
		return "", err
	}
	built = dir
	args, env, err := imageBuild()
	if err != nil {
		return "", err
	}
	file := filepath.Join(dir, "weir")
	for i, a := range args {
		if a == "-o" {
			args[i+1] = file
		}
	}
	cmd := exec.Command("go", args...)
	cmd.Dir, cmd.Env = "..", append(os.Environ(), env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%v: %w\n%s", cmd, err, out)
	}
	return file, nil
})

// weir is the path of the binary.
func weir(t *testing.T) string {
	t.Helper()
	file, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	return file
}
