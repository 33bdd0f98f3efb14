package kube

import (
	"errors"
	"fmt"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// ClientConfig is how to reach the API server of a kubeconfig file, or, for
// "", that of the cluster whose Pod this process is.
func ClientConfig(kubeconfig string) (*rest.Config, error) {
	var (
		c   *rest.Config
		err error
	)
	if kubeconfig == "" {
		c, err = rest.InClusterConfig()
		if errors.Is(err, rest.ErrNotInCluster) {
			return nil, errors.New("kubernetes: this is no Pod of a cluster (KUBERNETES_SERVICE_HOST is not set): give discovery.kubernetes.kubeconfig or --kubeconfig")
		}
	} else {
		c, err = clientcmd.NewNonInteractiveDeferredLoadingClientConfig(
			&clientcmd.ClientConfigLoadingRules{ExplicitPath: kubeconfig}, nil).ClientConfig()
	}
	if err != nil {
		return nil, fmt.Errorf("kubernetes: kubeconfig %s: %w", kubeconfig, err)
	}
	// Half the bytes and a third of the CPU time of JSON.
	c.ContentType = "application/vnd.kubernetes.protobuf"
	c.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	c.UserAgent = rest.DefaultKubernetesUserAgent()
	return c, nil
}
