package chaos

import (
	"testing"

	"github.com/weirlb/weir/perf/netlab/weirtest"
)

func TestMain(m *testing.M) { weirtest.Main(m) }
