package ports

import (
	"errors"
	"fmt"
	"time"

	"github.com/weirlb/weir/lb/warning"
)

// retryEvery is the time after which a device that was refused is tried again.
const retryEvery = 10 * time.Second

// refusal is why a device could not be attached, and when to try again.
type refusal struct {
	name, err string
	until     time.Time
	noRoom    bool
	member    bool // of a bond
}

func (r refusal) warning() warning.Warning {
	return warning.Warning{
		Kind: warning.Member, Object: r.name,
		Text: fmt.Sprintf("bond member %s: its packets go to the kernel, and none are sent by it: %s",
			r.name, r.err),
	}
}

// errNoRoom is why a device cannot join that would, if another left.
var errNoRoom = errors.New("restart Weir to have packet memory for more")

// refusals are devices that could not be attached, by index.
type refusals map[int]refusal

// add notes why a device could not be attached, and reports whether the reason is another.
func (rf refusals) add(index int, name string, member bool, err error) (r refusal, changed bool) {
	r = refusal{name, err.Error(), time.Now().Add(retryEvery), errors.Is(err, errNoRoom), member}
	changed = rf[index].err != r.err
	rf[index] = r
	return r, changed
}

// members lists a warning for every member of a bond that could not be attached.
func (rf refusals) members() (list []warning.Warning) {
	for _, r := range rf {
		if r.member {
			list = append(list, r.warning())
		}
	}
	return list
}

// retry has devices that found no room try again at once.
func (rf refusals) retry() {
	for device, r := range rf {
		if r.noRoom {
			r.until = time.Time{}
			rf[device] = r
		}
	}
}
