package clients

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	pb "waterwheel.dev/go/waterwheel/v1"
)

// far is a pool whose jobs attached workers run.
const far = `
[pool.far]
when_full = "wait"
[kind.thumbnail]
pool = "far"
remote = true
`

// goWorker builds the example of a worker that attaches.
func goWorker(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "worker")
	build := exec.Command("go", "build", "-o", program, "./worker")
	build.Dir = "../../../examples/go"
	if told, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, told)
	}
	return program
}

// work runs a worker of the given servers until the test ends.
func work(t *testing.T, command []string, servers ...string) *exec.Cmd {
	t.Helper()
	worker := exec.Command(command[0], command[1:]...)
	worker.Env = append(os.Environ(), "WATERWHEEL_ADDRESS="+strings.Join(servers, ","))
	if err := worker.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		worker.Process.Kill()
		worker.Wait()
	})
	return worker
}

// attached is how many jobs the workers of a server can run at once.
func attached(t *testing.T, client pb.WorkerPoolServiceClient) uint32 {
	return pool(t, client, "far").Size.Workers
}

func TestWorkerKeepsTheProtocol(t *testing.T) {
	rows, err := exec.Command(binary(), "worker", "test", "--attach", "--output", "json", "--", goWorker(t)).Output()
	if err != nil {
		t.Error(err)
	}
	passed := 0
	for line := range strings.Lines(string(rows)) {
		var row struct{ Verdict string }
		if err := json.Unmarshal([]byte(line), &row); err != nil || row.Verdict != "pass" {
			t.Error(line)
		}
		passed++
	}
	if passed != 16 {
		t.Errorf("%d rows", passed)
	}
}

func TestWorkerRunsTheJobsOfAServer(t *testing.T) {
	server := start(t, far)
	client := server.client()
	// It waits for the worker, which is still to attach.
	early := background(within(t), client, "thumbnail", "early")
	worker := work(t, []string{goWorker(t)}, server.address)
	if err := await(t, early); err != nil {
		t.Fatal(err)
	}
	if slots := attached(t, client); slots != 4 {
		t.Errorf("%d slots", slots)
	}
	answer, err := client.Submit(within(t), submission("thumbnail", "late"))
	if err != nil || string(answer.Result.Output) != "late" {
		t.Errorf("%v, %v", answer, err)
	}
	worker.Process.Signal(syscall.SIGTERM)
	if err := worker.Wait(); err != nil {
		t.Error(err)
	}
	eventually(t, "its slots are gone", func() bool { return attached(t, client) == 0 })
}

// farOrTwice is a pool of attached workers that holds no caller; its jobs may run twice, or not.
const farOrTwice = `
[pool.far]
[kind.thumbnail]
pool = "far"
remote = true
idempotent = %v
`

// attachment is a worker that a test drives by hand.
type attachment struct {
	t          *testing.T
	connection *grpc.ClientConn
	call       grpc.BidiStreamingClient[pb.AttachRequest, pb.AttachResponse]
}

// attach returns as soon as the server has the worker.
func attach(t *testing.T, s *server) *attachment {
	t.Helper()
	connection := connect(t, s.address)
	call, err := pb.NewWorkerServiceClient(connection).Attach(within(t))
	if err != nil {
		t.Fatal(err)
	}
	hello := &pb.AttachRequest_Hello{Name: "by hand", Kinds: []string{"thumbnail"}, Concurrency: 1}
	call.Send(&pb.AttachRequest{Message: &pb.AttachRequest_Hello_{Hello: hello}})
	if _, err := call.Header(); err != nil {
		t.Fatal(err)
	}
	return &attachment{t, connection, call}
}

// run is the next job.
func (a *attachment) run() *pb.AttachResponse_Run {
	a.t.Helper()
	response, err := a.call.Recv()
	if err != nil || response.GetRun() == nil {
		a.t.Fatal(response, err)
	}
	return response.GetRun()
}

func (a *attachment) done(id string) {
	done := &pb.AttachRequest_Done{Id: id}
	a.call.Send(&pb.AttachRequest{Message: &pb.AttachRequest_Done_{Done: done}})
}

// shipped is a client with the service config of deploy/.
func shipped(t *testing.T, s *server) pb.WorkerPoolServiceClient {
	config := grpc.WithDefaultServiceConfig(serviceConfig(t, asShipped))
	return pb.NewWorkerPoolServiceClient(connect(t, s.address, config))
}

func TestAClientComesBackUntilAWorkerIsAttached(t *testing.T) {
	server := start(t, fmt.Sprintf(farOrTwice, false))
	_, err := server.client().Submit(within(t), submission("thumbnail", ""))
	check(t, err, codes.Unavailable, "NO_WORKERS")
	ended := background(within(t), shipped(t, server), "thumbnail", "")
	stats := server.client()
	eventually(t, "the call is refused", func() bool { return rejected(pool(t, stats, "far"), "NO_WORKERS") == 2 })
	worker := attach(t, server)
	worker.done(worker.run().Id)
	if err := await(t, ended); err != nil {
		t.Fatal(err)
	}
}

func TestAClientSendsALostJobAgainIfItMayRunTwice(t *testing.T) {
	for _, mayRunTwice := range []bool{true, false} {
		t.Run(fmt.Sprintf("idempotent = %v", mayRunTwice), func(t *testing.T) {
			server := start(t, fmt.Sprintf(farOrTwice, mayRunTwice))
			first := attach(t, server)
			ended := background(within(t), shipped(t, server), "thumbnail", "1")
			first.run()
			second := attach(t, server)
			first.connection.Close()
			if mayRunTwice {
				second.done(second.run().Id)
				if err := await(t, ended); err != nil {
					t.Fatal(err)
				}
				return
			}
			info := check(t, await(t, ended), codes.Aborted, "WORKER_LOST")
			if info.Metadata["execution"] != "STARTED" {
				t.Error(info)
			}
		})
	}
}
