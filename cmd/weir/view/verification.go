package view

import (
	"fmt"
	"io"

	"github.com/weirlb/weir/cmd/weir/api"
)

// Verification writes the result of a check of the flow table.
func Verification(w io.Writer, v *api.Verification) error {
	for _, f := range v.Faults {
		if _, err := fmt.Fprintln(w, f); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(w, "%d connections, %d slots of the index, %d faults\n", v.Connections, v.Slots, len(v.Faults)+v.FaultsLeftOut)
	return err
}
