package clients

import (
	"context"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	pb "waterwheel.dev/go/waterwheel/v1"
)

// soon bounds the time from a cancel until the worker is free. The server promises 50 ms; the machine is busy.
const soon = time.Second

// idle polls until the pool has ended a number of jobs as cancelled and holds none, in time.
func idle(t *testing.T, client pb.WorkerPoolServiceClient, cancelled uint64) {
	t.Helper()
	took := eventually(t, "the worker is free", func() bool {
		stats := pool(t, client, "one")
		return stats.InFlight == 0 && stats.Queue.Jobs == 0 && stats.Jobs.Cancelled == cancelled
	})
	t.Logf("free after %v", took)
	if took > soon {
		t.Errorf("free only after %v", took)
	}
	if state := pool(t, client, "one").Workers[0].State; state != pb.WorkerState_WORKER_STATE_IDLE {
		t.Errorf("the worker is %v", state)
	}
}

func TestCancelledCallFreesItsWorkerAndItsPlaceInTheQueue(t *testing.T) {
	client := start(t, impatient).client()
	ctx, cancel := context.WithCancel(within(t))
	running := background(ctx, client, "sleep", "60000")
	eventually(t, "a job runs", func() bool { return pool(t, client, "one").InFlight == 1 })
	queued := background(ctx, client, "sleep", "60000")
	eventually(t, "a job is queued", func() bool { return pool(t, client, "one").Queue.Jobs == 1 })
	cancel()
	idle(t, client, 2)
	for _, ended := range []<-chan error{running, queued} {
		if err := await(t, ended); status.Code(err) != codes.Canceled {
			t.Errorf("ended as %v", err)
		}
	}
	if _, err := client.Submit(within(t), submission("sleep", "1")); err != nil {
		t.Errorf("the next job: %v", err)
	}
}
