package clients

import (
	"context"
	"testing"
	"time"

	"google.golang.org/grpc"
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

func TestCancelledStreamFreesItsWorker(t *testing.T) {
	client := start(t, impatient).client()
	ctx, cancel := context.WithCancel(within(t))
	stream, err := client.Stream(ctx, &pb.StreamRequest{Job: &pb.Job{Kind: "sleep", Payload: []byte("60000")}})
	if err != nil {
		t.Fatal(err)
	}
	if event, err := stream.Recv(); err != nil || event.GetStarted() == nil {
		t.Fatalf("%v (%v)", event, err)
	}
	cancel()
	idle(t, client, 1)
}

func TestCancelledSubmitManyFreesItsWorker(t *testing.T) {
	client := start(t, impatient).client()
	ctx, cancel := context.WithCancel(within(t))
	call, err := client.SubmitMany(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		call.Send(&pb.SubmitManyRequest{Job: &pb.Job{Kind: "sleep", Payload: []byte("60000")}})
	}
	eventually(t, "jobs run and wait", func() bool {
		stats := pool(t, client, "one")
		return stats.InFlight == 1 && stats.Queue.Jobs == 1
	})
	cancel()
	idle(t, client, 2)
}

func TestClosedConnectionFreesItsWorker(t *testing.T) {
	server := start(t, impatient)
	watcher := server.client()
	connection, err := grpc.NewClient(server.address, plaintext)
	if err != nil {
		t.Fatal(err)
	}
	ended := background(within(t), pb.NewWorkerPoolServiceClient(connection), "sleep", "60000")
	eventually(t, "a job runs", func() bool { return pool(t, watcher, "one").InFlight == 1 })
	connection.Close()
	idle(t, watcher, 1)
	if err := await(t, ended); err == nil {
		t.Error("the call of a closed connection succeeded")
	}
}
