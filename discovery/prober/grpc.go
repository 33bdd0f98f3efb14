package prober

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	health "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

// ask asks the standard health service of gRPC, over a connection of its own, without TLS.
func (d Dialer) ask(ctx context.Context, t *Target) error {
	var lost atomic.Pointer[error] // why no connection: gRPC has it in a text alone
	conn, err := grpc.NewClient("passthrough:///"+t.To().String(),
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithUserAgent(userAgent), grpc.WithDisableServiceConfig(),
		grpc.WithNoProxy(), grpc.WithDisableRetry(),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			c, err := d.dial(t)(ctx, "", "")
			lost.Store(&err)
			return c, err
		}))
	if err != nil {
		return err
	}
	defer conn.Close()
	answer, err := health.NewHealthClient(conn).Check(ctx, &health.HealthCheckRequest{Service: t.Check.Service})
	switch {
	case err == nil && answer.Status == health.HealthCheckResponse_SERVING:
		return nil
	case err == nil:
		return fmt.Errorf("gRPC status %s", answer.Status)
	case conn.GetState() == connectivity.TransientFailure && lost.Load() != nil && *lost.Load() != nil:
		return *lost.Load()
	case ctx.Err() != nil:
		return ctx.Err()
	}
	switch status.Code(err) {
	case codes.Unimplemented:
		return errors.New("no gRPC health service")
	case codes.NotFound:
		return fmt.Errorf("gRPC health service does not know %q", t.Check.Service)
	case codes.Unavailable:
		return errors.New("the connection ended without an answer of gRPC")
	}
	return fmt.Errorf("gRPC code %s", status.Code(err))
}
