package clients

import (
	"fmt"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	pb "waterwheel.dev/go/waterwheel/v1"
)

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
