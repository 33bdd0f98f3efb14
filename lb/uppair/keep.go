package uppair

import (
	"errors"
	"fmt"
	"strings"
)

// Keep mends a pair that another program has changed: network managers take over links that
// they do not know. Packets that the TCX program redirects into such a pair are lost, and no
// counter of the program sees it. The pair follows the interface to a larger MTU; with a
// smaller MTU it stays as it is.
//
// mended is the difference that Keep has found, "" for none. With an error the pair loses
// packets until a later call mends it.
func (p *Pair) Keep(mtu int) (mended string, err error) {
	now, err := p.ends.Now()
	if err != nil {
		return "", err
	}
	found := now.Differences(p.mtu)
	if !silent(now) {
		found = append(found, p.Name+" or its peer has other settings")
	}
	p.mtu = max(p.mtu, mtu)
	if found == nil && now.Differences(p.mtu) == nil {
		return "", nil
	}
	mended = strings.Join(found, ", ")
	var errs []error
	for _, l := range now {
		if err := silence(l); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", l.Attrs().Name, err))
		}
	}
	if err := errors.Join(append(errs, now.SetUp(p.mtu))...); err != nil {
		return "", fmt.Errorf("%s, and cannot be mended: %w", mended, err)
	}
	return mended, nil
}

// Dropped is the number of packets that the pair has lost since it was made: its ring of 256
// packets was full, or an end was down or too small.
func (p *Pair) Dropped() (uint64, error) {
	now, err := p.ends.Now()
	if err != nil {
		return 0, err
	}
	return now.Dropped(), nil
}
