package clients

import (
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	pb "waterwheel.dev/go/waterwheel/v1"
)

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
