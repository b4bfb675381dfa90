package clients

import (
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	health "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	pb "waterwheel.dev/go/waterwheel/v1"
)

type servingStatus = health.HealthCheckResponse_ServingStatus

const (
	serving    = health.HealthCheckResponse_SERVING
	notServing = health.HealthCheckResponse_NOT_SERVING
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

// leaving is the everyday server with a notice that is long enough to look around in.
const leaving = everyday + `
[drain]
notice = "1500ms"
finish = "15s"
kill = "1s"
`

func TestDrainTellsHealthThenRefusesAndFinishesWhatItTook(t *testing.T) {
	server := start(t, leaving)
	client, connection, operator := server.client(), connect(t, server.address), connect(t, server.ops)
	ready, alive, operators := watch(t, connection, ""), watch(t, connection, "liveness"), watch(t, operator, "readiness")
	for _, statuses := range []<-chan servingStatus{ready, alive, operators} {
		if got := next(t, statuses); got != serving {
			t.Fatalf("before the drain: %v", got)
		}
	}
	submitted := background(within(t), client, "sleep", "3000")
	streamed := make(chan error, 1)
	go func() {
		_, err := events(t, server.client(), &pb.Job{Kind: "sleep", Payload: []byte("3000")})
		streamed <- err
	}()
	eventually(t, "both jobs run", func() bool { return pool(t, client, "io").InFlight == 2 })
	open, err := client.SubmitMany(within(t))
	if err != nil {
		t.Fatal(err)
	}

	server.terminate()
	for _, statuses := range []<-chan servingStatus{ready, operators} {
		if got := next(t, statuses); got != notServing {
			t.Errorf("in the drain, the watch says %v", got)
		}
	}
	// During the notice jobs are still taken: whoever balances the load needs time to see it.
	if _, err := client.Submit(within(t), submission("echo", "")); err != nil {
		t.Errorf("during the notice: %v", err)
	}
	for _, name := range names {
		expected := notServing
		if name == "liveness" {
			expected = serving
		}
		if got := healthOf(t, operator, name); got != expected {
			t.Errorf("in the drain, %q is %v", name, got)
		}
	}

	// After it a call that could take more jobs ends, and new ones are refused or find nobody.
	_, err = open.Recv()
	info := check(t, err, codes.Unavailable, "DRAINING")
	if info.Metadata["execution"] != "NOT_STARTED" {
		t.Errorf("%v", info)
	}
	if _, err := client.Submit(within(t), submission("echo", "")); status.Code(err) != codes.Unavailable {
		t.Errorf("after the notice: %v", err)
	}
	if got := healthOf(t, operator, "liveness"); got != serving {
		t.Errorf("after the notice, liveness is %v", got)
	}
	silent(t, alive)
	for _, ended := range []<-chan error{submitted, streamed} {
		if err := await(t, ended); err != nil {
			t.Errorf("a job that was taken ended as %v", err)
		}
	}
	receipt, exit := server.end()
	if exit != 0 || len(receipt.Lost) != 0 || receipt.Finished < 3 {
		t.Errorf("exit code %d, %+v", exit, receipt)
	}
}
