package complaints

import (
	"context"
	"time"

	"github.com/weirlb/weir/cmd/weir/healthz"
	"github.com/weirlb/weir/cmd/weir/problem"
	"github.com/weirlb/weir/lb/aligned"
)

// lookForLate is how often a late update is looked for.
const lookForLate = time.Second

// FollowLate has a late update listed as a problem. It is apart from the other problems: their
// questions may wait for the publication.
func FollowLate(ctx context.Context, p *healthz.Pending, problems *problem.Registry) error {
	tick := aligned.NewTicker(lookForLate)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		var late []problem.Problem
		if reason := p.Late(time.Now()); reason != "" {
			late = append(late, problem.New(problem.LateUpdate, "", "%s", reason))
		}
		problems.Set(Update, problem.Weir, late...)
	}
}
