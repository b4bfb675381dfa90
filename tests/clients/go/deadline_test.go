package clients

import (
	"context"
	"strconv"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	pb "waterwheel.dev/go/waterwheel/v1"
)

// impatient is a server with one worker. It answers 50 ms early: on a busy machine the default of 10 ms would measure
// the machine.
const impatient = `
pool.one.workers = 1
kind.sleep = { pool = "one", builtin = "sleep" }
[deadline]
reply_margin = "50ms"
`

func TestDeadlineExceededArrivesWithItsDetailsBeforeTheOwnTimer(t *testing.T) {
	client := start(t, impatient).client()
	pool(t, client, "one") // connects
	const calls, budget = 10, 600 * time.Millisecond
	told := 0
	for range calls {
		var trailers metadata.MD
		_, err := client.Submit(deadline(t, budget), submission("sleep", "60000"), grpc.Trailer(&trailers))
		// The client's own timer knows no details.
		info, ok := detail[*errdetails.ErrorInfo](err)
		if !ok {
			t.Logf("the own timer was first: %v", err)
			continue
		}
		check(t, err, codes.DeadlineExceeded, "RUN_TIMEOUT")
		run, _ := strconv.ParseFloat(info.Metadata["run_ms"], 64)
		if info.Metadata["execution"] != "STARTED" || run < 300 ||
			info.Metadata["kind"] != "sleep" || info.Metadata["pool"] != "one" ||
			pushback(t, trailers) != -1 {
			t.Errorf("%v %v", info, trailers)
		}
		told++
	}
	if told < calls-1 {
		t.Errorf("%d of %d calls were told why they ended", told, calls)
	}
}

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
