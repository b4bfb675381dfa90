package clients

import (
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	health "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

type servingStatus = health.HealthCheckResponse_ServingStatus

const (
	serving    = health.HealthCheckResponse_SERVING
	notServing = health.HealthCheckResponse_NOT_SERVING
	unknown    = health.HealthCheckResponse_SERVICE_UNKNOWN
)

// names are all that the everyday server answers for.
var names = []string{"", "waterwheel.v1.WorkerPoolService", "liveness", "readiness", "capacity", "pool/cpu", "pool/io"}

// healthOf asks once.
func healthOf(t *testing.T, connection *grpc.ClientConn, name string) servingStatus {
	t.Helper()
	request := &health.HealthCheckRequest{Service: name}
	response, err := health.NewHealthClient(connection).Check(within(t), request)
	if err != nil {
		t.Fatalf("health of %q: %v", name, err)
	}
	return response.Status
}

// watch returns the statuses as they come. The channel closes when the watch ends.
func watch(t *testing.T, connection *grpc.ClientConn, name string) <-chan servingStatus {
	t.Helper()
	watch, err := health.NewHealthClient(connection).Watch(within(t), &health.HealthCheckRequest{Service: name})
	if err != nil {
		t.Fatal(err)
	}
	statuses := make(chan servingStatus, 16)
	go func() {
		defer close(statuses)
		for {
			response, err := watch.Recv()
			if err != nil {
				return
			}
			statuses <- response.Status
		}
	}()
	return statuses
}

// next returns the next status of a watch.
func next(t *testing.T, statuses <-chan servingStatus) servingStatus {
	t.Helper()
	select {
	case status, open := <-statuses:
		if !open {
			t.Fatal("the watch ended")
		}
		return status
	case <-time.After(patience):
		t.Fatal("the watch is silent")
		return 0
	}
}

// silent fails the test if a watch says anything, or ends, for a while.
func silent(t *testing.T, statuses <-chan servingStatus) {
	t.Helper()
	select {
	case status, open := <-statuses:
		t.Errorf("the watch says %v (open: %v)", status, open)
	case <-time.After(600 * time.Millisecond):
	}
}

func TestUnknownNameIsNotFoundAndItsWatchStaysOpen(t *testing.T) {
	connection := connect(t, start(t, everyday).address)
	for _, name := range []string{"nosuch", "pool/nosuch"} {
		_, err := health.NewHealthClient(connection).Check(within(t), &health.HealthCheckRequest{Service: name})
		if status.Code(err) != codes.NotFound {
			t.Errorf("%q: %v", name, err)
		}
		statuses := watch(t, connection, name)
		if got := next(t, statuses); got != unknown {
			t.Errorf("%q is %v", name, got)
		}
		silent(t, statuses)
	}
}
