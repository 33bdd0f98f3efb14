package hostcheck

import (
	"context"
	"errors"
	"time"

	"github.com/weirlb/weir/cmd/weir/config"
	"github.com/weirlb/weir/cmd/weir/source"
	"github.com/weirlb/weir/discovery/kube"
)

// checkCluster asks the API server for Weir's permissions. A server that does not answer is
// only a note: Weir starts without it, and waits for it.
func checkCluster(fs *findings, cfg *config.Configuration) {
	k := cfg.Discovery.Kubernetes
	if k == nil {
		return
	}
	kc, err := source.ClusterConfig(cfg)
	if err != nil {
		fs.add(Wrong, "cluster", "%v", err)
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	denials, err := kube.Access(ctx, kc)
	if errors.Is(err, kube.ErrCredentials) {
		fs.add(Wrong, "cluster", "%v", err)
		return
	}
	if err != nil {
		fs.add(Note, "cluster", "%v", err)
		return
	}
	denied := 0
	for _, d := range denials {
		if d.Optional {
			fs.add(Note, "cluster", "%v", d)
			continue
		}
		fs.add(Wrong, "cluster", "%v", d)
		denied++
	}
	if denied == 0 {
		fs.add(OK, "cluster", "%s lets Services, EndpointSlices and Nodes be watched", kc.REST.Host)
	}
}
