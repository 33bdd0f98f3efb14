package definition

import (
	"slices"
	"testing"

	"github.com/weirlb/weir/discovery/addresspool"
)

// Every kind that is read in weir.dev has a definition.
func TestEveryKindIsDefined(t *testing.T) {
	if want := addresspool.Kinds(addresspool.GroupWeir); !slices.Equal(Kinds(), want) {
		t.Errorf("%v, want %v", Kinds(), want)
	}
	all, err := All()
	if err != nil || len(all) != len(kinds) {
		t.Errorf("%d definitions, %v", len(all), err)
	}
}
