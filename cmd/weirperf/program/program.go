// Package program finds the weir that is shown or measured: it runs in processes of its
// own, as an operator runs it.
package program

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
)

// Weir is the path of weir beside this program, else in $PATH.
func Weir() (string, error) {
	self, err := os.Executable()
	if err == nil {
		beside := filepath.Join(filepath.Dir(self), "weir")
		if _, err := os.Stat(beside); err == nil {
			return beside, nil
		}
	}
	path, err := exec.LookPath("weir")
	if err != nil {
		return "", errors.New("there is no program weir beside this one or in $PATH: run `make build`")
	}
	return filepath.Abs(path)
}
