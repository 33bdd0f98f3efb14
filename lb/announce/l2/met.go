package l2

import "time"

// acquaintances are the members that might own an address once, with how long they were members since. A host
// may join under any number of names, so that the names of the shortest time are forgotten first: a node
// that has served for long is not new when it returns.
type acquaintances map[string]time.Duration

// maxMet bounds them. It is larger than the number of members at a time.
const maxMet = 16 * maxMembers

// meet notes a member that might own an address. It reports whether the member is new. present reports which
// names are those of members now, and are not forgotten.
func (a acquaintances) meet(name string, present func(name string) bool) bool {
	if _, known := a[name]; known {
		return false
	}
	if len(a) >= maxMet {
		a.forget(present)
	}
	a[name] = 0
	return true
}

// forget forgets the absent name of the shortest time.
func (a acquaintances) forget(present func(name string) bool) {
	least, found := "", false
	for name, served := range a {
		if !present(name) && (!found || served < a[least]) {
			least, found = name, true
		}
	}
	delete(a, least)
}

// left adds the time of a member that is gone.
func (a acquaintances) left(name string, served time.Duration) {
	if _, known := a[name]; known {
		a[name] += served
	}
}
