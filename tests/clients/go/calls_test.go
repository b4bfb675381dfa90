package clients

import (
	"context"
	"fmt"
	"io"
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

// everyday is a server as many will run it.
const everyday = `
pool.cpu.workers = 2
kind.sha256 = { pool = "cpu", builtin = "sha256" }
kind.gzip = { pool = "cpu", builtin = "gzip" }
kind.sleep = { pool = "io", builtin = "sleep" }
kind.echo = { pool = "io", builtin = "echo" }
[pool.io]
workers = 8
when_full = "wait"
`

// tiny is a server with room for two jobs at a time.
const tiny = `
kind.echo = { pool = "tiny", builtin = "echo" }
kind.sleep = { pool = "tiny", builtin = "sleep" }
[server]
max_payload = "1MiB"
[pool.tiny]
workers = 1
queue = { jobs = 1 }
when_full = "reject"
`

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

// events reads a stream to its end.
func events(t *testing.T, client pb.WorkerPoolServiceClient, job *pb.Job) ([]*pb.StreamResponse, error) {
	t.Helper()
	stream, err := client.Stream(within(t), &pb.StreamRequest{Job: job})
	if err != nil {
		return nil, err
	}
	var events []*pb.StreamResponse
	for {
		event, err := stream.Recv()
		if err == io.EOF {
			return events, nil
		}
		if err != nil {
			return events, err
		}
		events = append(events, event)
	}
}

func TestStreamThatFailsEndsWithAStatusAfterItsEvents(t *testing.T) {
	client := start(t, everyday+`
[kind.nap]
pool = "io"
builtin = "sleep"
run_timeout = "300ms"
`).client()
	events, err := events(t, client, &pb.Job{Kind: "nap", Payload: []byte("60000")})
	info := check(t, err, codes.DeadlineExceeded, "RUN_TIMEOUT")
	if len(events) == 0 || events[0].GetStarted().GetJobId() != info.Metadata["job"] {
		t.Errorf("%v after %v", info, events)
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

// submitMany sends all requests while it reads, and returns the ends by tag.
func submitMany(t *testing.T, client pb.WorkerPoolServiceClient, requests []*pb.SubmitManyRequest) map[string]*pb.SubmitManyResponse {
	t.Helper()
	call, err := client.SubmitMany(within(t))
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for _, request := range requests {
			if call.Send(request) != nil {
				return // Recv tells why.
			}
		}
		call.CloseSend()
	}()
	ends := map[string]*pb.SubmitManyResponse{}
	for {
		response, err := call.Recv()
		if err == io.EOF {
			return ends
		}
		if err != nil {
			t.Fatal(err)
		}
		if ends[response.Tag] != nil {
			t.Fatalf("tag %q was answered twice", response.Tag)
		}
		ends[response.Tag] = response
	}
}

func TestSubmitManyAnswersEachOf500JobsOnceAndRefusesNone(t *testing.T) {
	client := start(t, tiny).client()
	var requests []*pb.SubmitManyRequest
	for i := range 500 {
		tag := fmt.Sprintf("job-%d", i)
		requests = append(requests, &pb.SubmitManyRequest{Tag: tag, Job: &pb.Job{Kind: "echo", Payload: []byte("of " + tag)}})
	}
	// A few that take their time, so that the pool is full.
	for i := 0; i < 500; i += 100 {
		requests[i].Job = &pb.Job{Kind: "sleep", Payload: []byte("50")}
	}
	ends := submitMany(t, client, requests)
	if len(ends) != len(requests) {
		t.Errorf("%d of %d jobs were answered", len(ends), len(requests))
	}
	for i, request := range requests {
		expected := "of " + request.Tag
		if i%100 == 0 {
			expected = "slept 50 ms"
		}
		if end := ends[request.Tag]; string(end.GetResult().GetOutput()) != expected {
			t.Errorf("%s: %v", request.Tag, end)
		}
	}
	if stats := pool(t, client, "tiny"); stats.Jobs.Completed != 500 || len(stats.Jobs.Rejected) != 0 {
		t.Errorf("%v", stats.Jobs)
	}
}

// programs is a server whose kind fails as unavailable.
const programs = `
pool.main.workers = 2
[kind.away]
pool = "main"
exec = ["/bin/sh", "-c", "exit 75"]
`

// obedient is the service config of deploy/ with a backoff far too long for these tests: a call that succeeds came back
// when it was told to.
func obedient(t *testing.T) string {
	return serviceConfig(t, func(config map[string]any) {
		method := config["methodConfig"].([]any)[0].(map[string]any)
		policy := method["retryPolicy"].(map[string]any)
		policy["initialBackoff"], policy["maxBackoff"] = "60s", "60s"
	})
}

// fill makes the tiny pool full for several hundred milliseconds, and the server know how long its jobs run.
func fill(t *testing.T, client pb.WorkerPoolServiceClient) {
	t.Helper()
	if err := await(t, background(within(t), client, "sleep", "400")); err != nil {
		t.Fatal(err)
	}
	running := background(within(t), client, "sleep", "400")
	eventually(t, "a job runs", func() bool { return pool(t, client, "tiny").InFlight == 1 })
	queued := background(within(t), client, "sleep", "400")
	eventually(t, "a job is queued", func() bool { return pool(t, client, "tiny").Queue.Jobs == 1 })
	t.Cleanup(func() {
		for _, ended := range []<-chan error{running, queued} {
			if err := await(t, ended); err != nil {
				t.Error(err)
			}
		}
	})
}

func TestRefusedCallIsRetriedWhenToldAndSucceeds(t *testing.T) {
	calls := map[string]func(pb.WorkerPoolServiceClient) error{
		"Submit": func(client pb.WorkerPoolServiceClient) error {
			_, err := client.Submit(within(t), submission("echo", "at last"))
			return err
		},
		"Stream": func(client pb.WorkerPoolServiceClient) error {
			_, err := events(t, client, &pb.Job{Kind: "echo", Payload: []byte("at last")})
			return err
		},
	}
	for name, call := range calls {
		t.Run(name, func(t *testing.T) {
			server := start(t, tiny)
			client := server.client()
			fill(t, client)
			retrying := connect(t, server.address, grpc.WithDefaultServiceConfig(obedient(t)))
			begin := time.Now()
			if err := call(pb.NewWorkerPoolServiceClient(retrying)); err != nil {
				t.Fatal(err)
			}
			t.Logf("succeeded after %v", time.Since(begin))
			refusals := rejected(pool(t, client, "tiny"), "QUEUE_FULL")
			if refusals < 1 || refusals > 4 {
				t.Errorf("%d refusals", refusals)
			}
		})
	}
}

func TestFailureOfAHandlerIsNotRetriedWhateverItsCode(t *testing.T) {
	server := start(t, programs)
	client := pb.NewWorkerPoolServiceClient(connect(t, server.address, grpc.WithDefaultServiceConfig(obedient(t))))
	begin := time.Now()
	_, err := client.Submit(within(t), submission("away", ""))
	// The policy would retry UNAVAILABLE; the pushback of -1 forbids it, for the work had started.
	check(t, err, codes.Unavailable, "HANDLER_FAILED")
	if took := time.Since(begin); took > 10*time.Second {
		t.Errorf("the client came back after %v", took)
	}
	if jobs := pool(t, client, "main").Jobs; jobs.Accepted != 1 || jobs.Failed != 1 {
		t.Errorf("%v", jobs)
	}
}
